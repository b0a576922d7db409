"""Runs of tiny models: sessions in every mode, tensors alone, chats, pipelines and streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

import foveate
from foveate.stream import Offload
from tests import jitter, zoo
from tests.answers import Drawn
from tests.chat.families import talker
from tests.stream import tiny
from tests.zoo import directory

from .drawing import HEADS, MEASURED, Run
from .pictures import image

LENGTHS = {"batch": (23, 31, 40), "chunks": (23, 31, 40), "beams": (23, 40), "expected": (31, 40)}
TURNS = (("What is the total?", (0,)), ("And the tax?", ()), ("Which of these is older?", (1, 2)))
STATS = (
    *("policy", "seen", "kept", "asked", "noted", "visual", "bytes_before", "bytes_after"),
    *("computed", "raised"),
)


class Heard(LogitsProcessor):
    """A processor that keeps the model's logits; a fixed table chooses every token."""

    def __init__(self) -> None:
        self.logits: list[Tensor] = []
        self._drawn = Drawn()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.logits.append(scores.detach().clone())
        return self._drawn(input_ids, scores)

    def options(self, tokens: int = 5) -> dict[str, Any]:
        """Return the arguments of ``generate``."""
        mine = LogitsProcessorList([self])
        return {"max_new_tokens": tokens, "do_sample": False, "logits_processor": mine}


class Prompt:
    """A model with its drawn prompt, and what it answered."""

    def __init__(self, run: Run) -> None:
        self.family, self.heard = run["family"], Heard()
        self.answers: list[Tensor] = []
        self.model = zoo.build(self.family)
        self.model.set_attn_implementation(run["attention"])
        self.model.to(getattr(torch, run["dtype"]))
        self.sees = self.family not in zoo.TEXT_FAMILIES
        images = 0 if run["mode"] in ("chunks", "embeddings") else run["images"]
        lengths = [n + 24 * (images == 2) for n in LENGTHS.get(run["mode"], (40,))]
        drawn = {"images": images if self.sees else None, "seed": run["seed"]}
        self.inputs = self.cast(zoo.prompt(self.family, lengths=lengths, **drawn))

    def cast(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the inputs with floats of the model's type."""
        floats = {k: v.to(self.model.dtype) for k, v in inputs.items() if v.is_floating_point()}
        return {**inputs, **floats}

    def answer(self, inputs: dict[str, Any], **how: Any) -> Tensor:
        """Return the sequences that the model generates."""
        done: Tensor = self.model.generate(**inputs, **{**self.heard.options(), **how})
        self.answers.append(done)
        return done

    def question(self, seed: int = 1) -> dict[str, Tensor]:
        """Return the inputs of a question behind the prompt."""
        return self.cast(zoo.extend(self.family, self.inputs, new_text=6, seed=seed).cached)


def run_model(run: Run, folder: Path) -> dict[str, Any]:
    """Compress one prompt in one mode."""
    prompt, words, vision = Prompt(run), directory.tokenizer(), None
    words.chat_template = directory.CHAT_TEMPLATE
    spec = run["spec"].replace("PROFILE", f"'{_profile(run['spec'], prompt, folder)}'")
    if run["mode"] == "embeddings":
        vision = torch.zeros_like(prompt.inputs["input_ids"], dtype=torch.bool)
        vision[:, 10:25] = True
    with foveate.compress(prompt.model, spec, vision=vision, tokenizer=words) as session:
        steps = _MODES[run["mode"]](prompt, session, folder)
        return {
            "tokens": prompt.answers,
            "logits": [*prompt.heard.logits, *(steps or ())],
            "stats": _stats(session.stats),
            "share": {"held": session.held_share(), "computed": session.computed_share()},
            "bytes": session.bytes_held,
            "file": _file(session.save(folder / "cache"), notes=run["mode"] == "saved"),
        }


def _stats(stats: Any) -> dict[str, Any]:
    return {name: getattr(stats, name) for name in STATS}


def _file(path: Path, notes: bool) -> dict[str, Any]:
    """Return what a saved cache holds: names and shapes, kept positions, pairs; notes if wanted."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
        metadata = file.metadata()
    own = {k: v for k, v in tensors.items() if not k.startswith("extra.")}
    return {
        "names": json.dumps({name: tuple(tensor.shape) for name, tensor in own.items()}),
        "extras": sorted(tensors.keys() - own.keys()),
        "kept": [tensor for tensor in own.values() if not tensor.is_floating_point()],
        "pairs": [tensor for tensor in own.values() if tensor.is_floating_point()],
        **({"notes": sorted(metadata), "schema": metadata["schema"]} if notes else {}),
    }


def _profile(spec: str, prompt: Prompt, folder: Path) -> Path | None:
    """Make the profile that a method needs, from a file of scores or from prompts."""
    name, path = spec.partition(":")[0], folder / "profile"
    if name in HEADS:
        scores = torch.rand(3, 4, generator=torch.Generator().manual_seed(3)).tolist()
        heads = {f"{i}-{j}": [x] for i, layer in enumerate(scores) for j, x in enumerate(layer)}
        table = "\n".join("\t".join(map(str, layer[:2])) for layer in scores)
        path.write_text(table if name == "duo_attention" else json.dumps(heads))
        return foveate.import_head_scores(prompt.model, name, path).save(folder / "made.json")
    if name in MEASURED:
        texts = [prompt.cast(zoo.prompt(prompt.family, lengths=(n,), seed=n)) for n in (40, 51)]
        return foveate.calibrate(prompt.model, name, texts).save(folder / "made.safetensors")
    return None


def _turns(armed: bool, prompt: Prompt, session: Any, folder: Path) -> None:
    cache = session.prefill(**prompt.inputs)
    for seed in (1, 2):
        if armed:
            session.rearm(cache)
        images = int(prompt.sees and seed == 1)
        turn = zoo.extend(prompt.family, prompt.inputs, new_text=24, images=images, seed=seed)
        done = prompt.answer(prompt.cast(turn.cached), past_key_values=cache)
        prompt.inputs = zoo.append(prompt.family, turn.full, done[:, -5:])


def _questions(prompt: Prompt, session: Any, folder: Path) -> None:
    cache = session.prefill(**prompt.inputs)
    for seed in (1, 2, 1):
        prompt.answer(prompt.question(seed), past_key_values=session.fork(cache))


def _saved(prompt: Prompt, session: Any, folder: Path) -> None:
    path = session.save(folder / "context", cache=session.prefill(**prompt.inputs))
    prompt.answer(prompt.question(), past_key_values=session.load(path))


def _lookup(prompt: Prompt, session: Any, folder: Path) -> None:
    tail = prompt.inputs["input_ids"][:, -6:]
    longer = zoo.append(prompt.family, prompt.inputs, torch.cat([tail, tail], 1))
    prompt.answer(prompt.cast(longer), prompt_lookup_num_tokens=4, eos_token_id=1)


def _drafts(prompt: Prompt, session: Any, folder: Path) -> None:
    prompt.answer(prompt.inputs, assistant_model=zoo.fresh("llama").to(prompt.model.dtype))


def _fixed(prompt: Prompt, session: Any, folder: Path) -> list[Tensor]:
    cache = session.fixed(8, cache=session.prefill(**prompt.inputs))
    token = prompt.inputs["input_ids"][:, -1:]
    return [prompt.model(input_ids=token, past_key_values=cache).logits for _ in range(3)]


def _embedded(prompt: Prompt, session: Any, folder: Path) -> None:
    embeds = prompt.model.get_input_embeddings()(prompt.inputs["input_ids"])
    mask = prompt.inputs["attention_mask"]
    prompt.answer({"inputs_embeds": embeds, "attention_mask": mask})


def _expected(prompt: Prompt, session: Any, folder: Path) -> list[Tensor]:
    end = prompt.inputs["input_ids"].shape[1]
    drafts = torch.randint(zoo.TEXT_FROM, zoo.VOCAB, (len(LENGTHS["expected"]), 4))
    session.expect(tokens=end)
    longer = prompt.cast(zoo.append(prompt.family, prompt.inputs, drafts))
    return [prompt.model(**longer).logits[:, end:]]


def _plain(**how: Any) -> Any:
    def mode(prompt: Prompt, session: Any, folder: Path) -> None:
        prompt.answer(prompt.inputs, **how)

    return mode


_MODES = {
    "greedy": _plain(),
    "batch": _plain(),
    "beams": _plain(num_beams=3, num_return_sequences=2),
    "chunks": _plain(prefill_chunk_size=7),
    "samples": _plain(do_sample=True, num_return_sequences=3),
    "two turns": lambda *parts: _turns(False, *parts),
    "armed turns": lambda *parts: _turns(True, *parts),
    "questions": _questions,
    "saved": _saved,
    "lookup": _lookup,
    "drafts": _drafts,
    "fixed": _fixed,
    "embeddings": _embedded,
    "expected": _expected,
}


def run_tensors(run: Run, folder: Path) -> dict[str, Any]:
    """Compress random tensors, without a model."""
    chance = torch.Generator().manual_seed(run["seed"])
    rows, tokens = len(run["lengths"]), max(run["lengths"])
    heads = (2 * run["groups"], 2, 2)  # of queries, keys and values
    layers = [
        [_jittered(torch.randn(rows, h, tokens, 16, generator=chance)) for h in heads]
        for _ in range(3)
    ]
    vision = torch.rand(rows, tokens, generator=chance) < 0.5
    mask = torch.arange(tokens) >= tokens - torch.tensor(run["lengths"])[:, None]
    weight = torch.randn(2 * run["groups"], 16, 64, generator=torch.Generator().manual_seed(5))
    policy = foveate.policy(run["spec"])
    kept = foveate.compress_tensors(policy, layers, vision, mask.long(), None, [weight] * 3)
    names = ("mask", "scores", "k", "v", "counts")
    return {"policy": policy.spec, **{n: [getattr(layer, n) for layer in kept] for n in names}}


def _jittered(values: Tensor) -> Tensor:
    return values * (1 + jitter.SHARE * jitter.noise(values, 1))


def run_chat(run: Run, folder: Path) -> dict[str, Any]:
    """Hold a conversation that is then branched, saved, streamed or answered anew."""
    who, heard = talker(run["family"]), Heard()
    options = {**heard.options(4), "eos_token_id": None}
    chat = foveate.Chat(who.model, who.processor, run["spec"], rewrites=run["rewrites"])
    found: list[Any] = []

    def note(answer: Any) -> None:
        ids, held = answer.ids, chat.held._asdict()
        found.append({"text": answer.text, "ids": ids, "ended": answer.ended, "held": held})

    for text, images in TURNS[:3]:
        note(chat.say(text, images=[image(i) for i in images], **options))
    if run["then"] == "retry":
        note(chat.retry(**options))
        note(chat.edit("And now?", **options))
    elif run["then"] == "fork":
        note(chat.fork().say("Who?", **options))
    elif run["then"] == "stream":
        pieces = chat.say("Where?", stream=True, **options)
        found.append({"pieces": "".join(pieces)})
        note(pieces.answer)
    else:
        path = chat.save(folder / "chat")
        found.append(_file(path, notes=True))
        chat = foveate.Chat.load(path, who.model, who.processor)
    last = chat.say("Why?", **options)
    note(last)
    roles = " ".join(message["role"] for message in chat.messages)
    return {"answers": found, "roles": roles, "logits": heard.logits, "stats": _stats(last.stats)}


def run_pipeline(run: Run, folder: Path) -> dict[str, Any]:
    """Ask two questions about one compressed context."""
    who, heard = talker(run["family"]), Heard()
    done = foveate.Pipeline(who.model, who.processor)(
        "A receipt of 7 March with bread, milk and a lamp. " * 3,
        questions=["What is it?", "How much?"],
        answer_prefix=run["prefix"],
        images=[image(0)],
        policy=run["spec"],
        **{**heard.options(), "eos_token_id": None},
    )
    return {"answers": done["answers"], "stats": _stats(done["stats"]), "logits": heard.logits}


def run_stream(run: Run, folder: Path) -> dict[str, Any]:
    """Show a stream some frames, ask, go on from a file or not, and ask again."""
    heard, found, how = Heard(), [], {}  # type: ignore[var-annotated]
    if run["how"] == "offload":
        how = {"offload": Offload(fetch=2, folder=folder / "frames")}
    elif run["how"] == "reindexed":
        how = {"positions": "reindexed"}
    stream = foveate.Stream(tiny.model(), tiny.processor(), run["spec"], every=6, **how)
    for number in range(8):
        stream.see(tiny.frame(number, width=tiny.SIDE * (2 + number % 2)), time=float(number))
        held = stream.held._asdict()
        found.append({name: held[name] for name in ("tokens", "seen", "images", "bytes", "bound")})
        if number in (4, 7):
            answer = stream.ask("and now?", **heard.options(3))
            found.append({"text": answer.text, "ids": answer.ids, "fetched": stream.fetched})
        if number == 5 and run["saved"]:
            path = stream.save(folder / "stream")
            found.append(_file(path, notes=True))
            stream.close()  # a folder of frames belongs to one stream
            stream = foveate.Stream.load(path, tiny.model(), tiny.processor())
    return {"frames": found, "logits": heard.logits}
