"""Records the prompts that the authors' code words, for ``test_prompts.py``.

    python tests/golden/record_prompts.py CHECKOUTS

CHECKOUTS holds checkouts of MileBench/MileBench, SUSTechBruce/LOOK-M, TerryPei/CSP,
THU-MIG/PrefixKV, xuyang-liu16/MixKV, haotian-liu/LLaVA, open-compass/VLMEvalKit, OpenGVLab/InternVL
and Meituan-AutoML/MobileVLM, each in a folder of its repository's name. Their workers and scripts
run as they are; models, tokenizers and what they import beside are stand-ins. The tokenizer notes
the prompt that it is given. ``prompts.json`` holds the questions, written for these tests, and the
prompts; none of the authors' code.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
from PIL import Image

OUT = Path(__file__).with_name("data") / "prompts.json"
MILEBENCH = {
    "meta_data": {
        "dataset": "CLEVR-Change",
        "question_type": "open-ended",
        "task_instruction": ["Say what differs between the two scenes."],
    },
    "data": [
        {
            "sample_id": 0,
            "task_instruction_id": 0,
            "task_instance": {
                "context": "Step 1: {image#1} a red cube. Step 2: {image#2} Then {image#3} What?",
                "images_path": ["a.png", "b.png", "c.png"],
            },
            "response": "A cube moved.",
        },
        {
            "sample_id": 1,
            "task_instruction_id": 0,
            "task_instance": {
                "context": "{image#1}{image#2}What moved?",
                "images_path": ["a.png", "b.png"],
                "choice_list": ["a cube", "a ball"],
            },
            "response": "a ball",
        },
    ],
}
QUESTION = "Which color has the larger ball?"
DESCRIPTIONS = ("<image>\nDescribe the scene in detail.", "What is shown here?\n<image>")


class Noted(Exception):
    """A prompt was given to the stand-in for the tokenizer."""


class Words:
    """A tokenizer with a token for each word and blank, which notes prompts."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def __call__(self, text: str, **options: Any) -> SimpleNamespace:
        start = len(self.words)
        self.words += [*text]
        return SimpleNamespace(input_ids=[*range(start, len(self.words))])

    def decode(self, ids: list[int]) -> str:
        return "".join(self.words[number] for number in ids)


def note(prompt: str, *others: Any, **options: Any) -> None:
    """Stand-in for tokenizer_image_token."""
    raise Noted(prompt)


def load(path: Path, name: str) -> Any:
    """Return a module of the authors' from its file."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def stand_in(name: str, **contents: Any) -> ModuleType:
    """Return a module that takes any import, in ``sys.modules``."""
    module = ModuleType(name)
    module.__getattr__ = lambda key: MagicMock(name=f"{name}.{key}")  # type: ignore[method-assign]
    module.__path__ = []  # type: ignore[attr-defined]
    module.__spec__ = ModuleSpec(name, None)  # which transformers asks for
    vars(module).update(contents)
    sys.modules[name] = module
    return module


def llava(conversation: Path, package: str = "llava") -> None:
    """Stand-ins for a package as LLaVA's, but for its conversation.py."""
    for name in [
        key for key in sys.modules if key.split(".")[0] in ("llava", "model", "mobilevlm")
    ]:
        del sys.modules[name]
    prefix = f"{package}." if package else ""
    if package:
        stand_in(package)
    constants = {
        "DEFAULT_IMAGE_TOKEN": "<image>",
        "DEFAULT_IM_START_TOKEN": "<im_start>",
        "DEFAULT_IM_END_TOKEN": "<im_end>",
        "IMAGE_TOKEN_INDEX": -200,
    }
    stand_in(f"{prefix}constants", **constants)
    helpers = {
        "tokenizer_image_token": note,
        "get_model_name_from_path": lambda path: path.rsplit("/", 1)[-1],
    }
    for name in ("mm_utils", "utils"):
        stand_in(f"{prefix}{name}", **helpers)
    model = MagicMock()
    model.config.mm_use_im_start_end = False
    loading = {"load_pretrained_model": lambda *a, **k: (Words(), model, MagicMock(), 2048)}
    for name in ("model", "model.builder", "model.kv_token_merge.modify_llama", "model.mobilevlm"):
        stand_in(f"{prefix}{name}", **loading)
    stand_in(f"{prefix}model.kv_token_merge")
    load(conversation, f"{prefix}conversation")


def milebench(root: Path, worker: str, conversation: Path, package: str = "llava") -> list[str]:
    """Return the prompts of a worker for the samples that the repository's own loader makes."""
    for name in ("workers", "workers.baseworker", "workers.model_workers", "utils"):
        sys.modules.pop(name, None)
    llava(conversation, package)
    stand_in("workers")
    load(root / "workers" / "baseworker.py", "workers.baseworker")
    workers = load(root / "workers" / "model_workers.py", "workers.model_workers")
    workers.Image = Image  # which MileBench's own file uses and does not import
    if package == "":  # MobileVLM's worker imports its package in two ways
        stand_in("mobilevlm")
        stand_in("mobilevlm.constants", IMAGE_TOKEN_INDEX=-200)
        stand_in("mobilevlm.utils", tokenizer_image_token=note)
    made = getattr(workers, worker)(Options(model_dir="llava-v1.5-7b", model_name="llava"))
    utils = load(dataset_file(root), "utils")
    with tempfile.TemporaryDirectory() as folder:
        for name in "abc":
            Image.new("RGB", (8, 8)).save(Path(folder) / f"{name}.png")
        data = utils.MileBenchDataset(
            annotation=MILEBENCH["data"],
            task_instructions=MILEBENCH["meta_data"]["task_instruction"],
            img_dir=folder,
            max_context_len=4096,
            n_tokens_per_image=576,
            tokenizer=Words(),
            dataset_name="CLEVR-Change",
            combine_image=None,
        )
        samples = [data[number] for number in range(2)]
        return [
            noted(made.forward, [one["context"]], [one["raw_img_list"]], "cpu", {})
            for one in samples
        ]


def dataset_file(root: Path) -> Path:
    """The file with MileBenchDataset; in LOOK-M's and CSP's releases it is MileBench's own."""
    mine = root / "utils.py"
    return (
        mine if "class MileBenchDataset" in mine.read_text() else root.parent / "MileBench/utils.py"
    )


class Options(dict[str, Any]):
    """A configuration; what it does not have is None."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


def noted(run: Any, *arguments: Any, **options: Any) -> str:
    """Return the prompt that the tokenizer is given."""
    try:
        run(*arguments, **options)
    except Noted as prompt:
        return str(prompt)
    raise AssertionError("no prompt was tokenized")


def prefixkv(root: Path, model: str, data: str, item: dict[str, Any]) -> str:
    """Return the prompt of eval_ppl.py for one item of a data set."""
    llava(root / "llava" / "conversation.py")
    splitting = MagicMock()
    splitting.split_between_processes.side_effect = lambda items, **options: Entered(items)
    stand_in("accelerate", Accelerator=lambda *a, **k: splitting)
    for name in (
        "accelerate.utils",
        "prefixkv",
        "patch_attention_forward",
        "requests",
        "transformers",
    ):
        stand_in(name)
    script = load(root / "eval_ppl.py", "eval_ppl")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / data
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps([item]))
        Image.new("RGB", (8, 8)).save(Path(folder) / "a.png")
        options = MagicMock(model_path=model, data_path=str(path), image_path=folder)
        options.conv_mode, options.eval_samples, options.exp_name = None, 1, f"{folder}/x"
        options.device, options.method, options.ratio = "cpu", "full", 1
        return noted(script.main, options)


class Entered:
    """Items that a with block gives."""

    def __init__(self, items: Any):
        self.items = items

    def __enter__(self) -> Any:
        return self.items

    def __exit__(self, *error: object) -> None:
        pass


def vlmevalkit(root: Path, conversation: Path) -> str:
    """Return the prompt of VLMEvalKit's worker for LLaVA-1.5."""
    llava(conversation)
    for name in ("pandas", "vlmeval", "vlmeval.dataset", "vlmeval.smp", "vlmeval.vlm"):
        stand_in(name)
    stand_in("vlmeval.vlm.base", BaseModel=object)
    stand_in("vlmeval.vlm.llava")
    module = load(root / "vlmeval/vlm/llava/llava.py", "vlmeval.vlm.llava.llava")
    worker = module.LLaVA.__new__(module.LLaVA)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "a.png")
        Image.new("RGB", (8, 8)).save(path)
        module.LLaVA.__init__.__globals__["splitlen"] = lambda path: 2
        module.LLaVA.__init__(worker, "liuhaotian/llava_v1.5_7b")
        message = [{"type": "image", "value": path}, {"type": "text", "value": QUESTION}]
        return noted(worker.generate_inner, message)


def lmms_eval(conversation: Path, name: str) -> str:
    """Return the prompt of a question behind its image, in a conversation of LLaVA's code."""
    templates = load(conversation, "llava.conversation").conv_templates
    asked = templates[name].copy()
    asked.append_message(asked.roles[0], f"<image>\n{QUESTION}")
    asked.append_message(asked.roles[1], None)
    return str(asked.get_prompt())


def internvl(root: Path) -> str:
    """Return the prompt of InternVLChatModel.chat, with each image as <image>."""
    package = "internvl.model.internvl_chat"
    for name in ("internvl", "internvl.model", package, "internvl.model.internlm2"):
        stand_in(name)
    folder = root / "internvl_chat/internvl"
    conversation = load(folder / "conversation.py", "internvl.conversation")
    for name in ("internlm2.modeling_internlm2", "phi3.modeling_phi3", "phi3"):
        stand_in(f"internvl.model.{name}")
    for name in ("configuration_internvl_chat", "modeling_intern_vit"):
        stand_in(f"{package}.{name}")
    stand_in("peft")
    path = folder / "model/internvl_chat/modeling_internvl_chat.py"
    module = load(path, f"{package}.modeling_internvl_chat")
    me = SimpleNamespace(
        template="internvl2_5",
        system_message=conversation.get_conv_template("internvl2_5").system_message,
        num_image_token=1,
    )
    tokenizer = MagicMock(side_effect=note)
    prompt = noted(module.InternVLChatModel.chat, me, tokenizer, torch.zeros(1), QUESTION, {})
    return prompt.replace("<img><IMG_CONTEXT></img>", "<image>")


def main(checkouts: Path) -> None:
    """Write prompts.json."""
    at = {path.name: path for path in checkouts.iterdir()}
    conversation = at["LLaVA"] / "llava/conversation.py"
    lookm, csp = (
        at[name] / "LLaVA-mix_merge_v1/llava/conversation.py" for name in ("LOOK-M", "CSP")
    )
    intern = at["InternVL"] / "internvl_chat_llava/llava/conversation.py"
    mobile = at["MobileVLM"] / "mobilevlm/conversation.py"
    mm_vet = {"image": "a.png", "question": QUESTION, "answer": "red"}
    prompts = {
        "internvl3": internvl(at["InternVL"]),
        "milebench/llava-1.5": milebench(at["MileBench"], "LLaVA", conversation),
        "milebench/llava-1.5 of LOOK-M": milebench(at["LOOK-M"], "LLaVA", lookm),
        "milebench/llava-1.5 of CSP": milebench(at["CSP"], "LLaVA", csp),
        "milebench/internvl-chat-v1.5": milebench(at["LOOK-M"], "InternVL", intern),
        "milebench/mobilevlm": milebench(at["LOOK-M"], "MobileVLM", mobile, ""),
        "mm_vet/llava-1.5": prefixkv(at["PrefixKV"], "llava-v1.5-7b", "mm-vet/mm-vet.json", mm_vet),
        "mm_vet/llava-next-vicuna": prefixkv(
            at["PrefixKV"], "llava-v1.6-vicuna-7b", "mm-vet/mm-vet.json", mm_vet
        ),
        "llava_description/llava-1.5": [
            prefixkv(at["PrefixKV"], "llava-v1.5-7b", "detail_1k.json", described(text))
            for text in DESCRIPTIONS
        ],
        "vlmevalkit/llava-1.5": vlmevalkit(at["VLMEvalKit"], conversation),
        "vicuna_v1": lmms_eval(conversation, "vicuna_v1"),
        "mistral_instruct": lmms_eval(conversation, "mistral_instruct"),
    }
    OUT.write_text(
        json.dumps(
            {
                "from": {name: commit(path) for name, path in sorted(at.items())},
                "question": QUESTION,
                "descriptions": DESCRIPTIONS,
                "milebench": MILEBENCH,
                "prompts": prompts,
            },
            indent=1,
        )
        + "\n"
    )


def described(text: str) -> dict[str, Any]:
    """Return an item of LLaVA-Description."""
    turns = [{"from": "human", "value": text}, {"from": "gpt", "value": "A ball."}]
    return {"id": "0", "image": "a.png", "conversations": turns}


def commit(path: Path) -> str:
    """Return the commit of a checkout, of a file COMMIT where git does not know it."""
    noted_there = path / "COMMIT"
    if noted_there.exists():
        return noted_there.read_text().strip()
    command = ("git", "-C", str(path), "rev-parse", "HEAD")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
