"""Second readings of what the model itself says of a prompt: kvzip's ``reads``."""

import pytest
import torch
from transformers import DynamicCache

import foveate
from foveate.errors import InvalidInput, InvalidParameter
from foveate.hf import branch, record
from foveate.hf.measuring.record import chosen
from foveate.hf.model.internals import CACHE
from foveate.hf.probe.questions import Asker
from tests import zoo
from tests.answers import certain
from tests.conformance.compare import check_generate
from tests.conformance.oracle import event_of
from tests.jitter import other_side
from tests.pairs import by_turns
from tests.ties import choices, holds_best, same_kept

LENGTHS = {"alone": (40,), "left-padded": (23, 31, 40)}
LONGEST = 5


class Words:
    """Each letter is a token."""

    chat_template = None

    def __call__(self, text, *, add_special_tokens):
        return {"input_ids": [zoo.TEXT_FROM + ord(letter) % 40 for letter in text]}


class Chat(Words):
    """The same of a model that chats."""

    chat_template = "{{ messages }}"

    def apply_chat_template(self, messages, *, tokenize, add_generation_prompt):
        return f"<user>{messages[0]['content']}</user><model>"


class Parts(Chat):
    """The same of a template that goes through the parts of what a user says."""

    def apply_chat_template(self, messages, *, tokenize, add_generation_prompt):
        parts = messages[0]["content"]
        said = "" if isinstance(parts, str) else parts[0]["text"]
        return f"<user>{said}</user><model>"


def eager(family, ends=None):
    model = zoo.fresh(family)
    model.config.get_text_config(decoder=True)._attn_implementation_internal = "eager"
    model.generation_config.eos_token_id = ends
    return model


def said_alone(model, ids, question, ends):
    """One row's answer to a question, and what each of their tokens pays to the prompt's; None for
    an answer that might be another on another CPU.
    """
    row, answer, logits = torch.cat([ids, question]), [], []
    with torch.no_grad(), other_side():
        while len(answer) < LONGEST:
            now = torch.cat([row, torch.tensor(answer, dtype=torch.long)])[None]
            logits.append(model(input_ids=now).logits[0, -1])
            new = int(logits[-1].argmax())
            if new == ends:
                break
            answer.append(new)
        whole = torch.cat([row, torch.tensor(answer, dtype=torch.long)])[None]
        paid = model(input_ids=whole, output_attentions=True).attentions
    if certain(logits) < len(logits):
        return None, None
    heads, n = model.config.num_key_value_heads, len(ids)
    after = [each[0, :, n:, :n].view(heads, -1, len(whole[0]) - n, n) for each in paid]
    return answer, torch.stack([each.amax((1, 2)) for each in after])


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_pairs_count_by_what_questions_and_the_models_own_answers_pay_to_them(lengths):
    inputs = zoo.prompt("llama", lengths=lengths)
    pads = inputs["attention_mask"].shape[1] - inputs["attention_mask"].sum(-1)
    asks = ["ab", "cde"]
    questions = [
        torch.tensor(Words()(f"\n\n{x}\n", add_special_tokens=0)["input_ids"]) for x in asks
    ]
    last = inputs["input_ids"][-1]
    never_ends, _ = said_alone(eager("llama"), last, questions[0], None)
    model = eager("llama", ends=never_ends[2])  # the last row's first answer ends after two
    spec = f"kvzip:budget=40%,sinks=0,reads=answers,asks='{'|'.join(asks)}',longest={LONGEST}"
    with foveate.compress(model, spec, tokenizer=Words()) as session, torch.no_grad():
        mask = inputs["attention_mask"]
        at = {"attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp_min(0)}
        model(input_ids=inputs["input_ids"], **at, **{CACHE: DynamicCache(config=model.config)})
        found = event_of(session.cache).kept
    for row, pad in enumerate(pads.tolist()):
        ids = inputs["input_ids"][row, pad:]
        said = [said_alone(model, ids, question, never_ends[2]) for question in questions]
        if any(answer is None for answer, _ in said):
            continue
        ranked = torch.stack([scores for _, scores in said]).amax(0)
        total = len(ids) * 2 // 5 * ranked.shape[0] * ranked.shape[1]
        ours = torch.stack([found[layer][row, :, pad : pad + len(ids)] for layer in sorted(found)])
        assert holds_best(ours, ranked, total)
    assert len(said[0][0]) == 2


def test_the_prompt_and_the_answers_count_together():
    model = zoo.build("llama")
    recording = record(model, **zoo.prompt("llama", lengths=(40,)))

    def scores(reads):
        spec = f"kvzip:budget=40%,sinks=0,reads={reads},longest=3"
        with foveate.compress(model, spec, tokenizer=Words()) as session:
            return torch.stack([one.scores for one in chosen(session, recording)])

    prompt, transcript, both = map(scores, ("prompt", "transcript", "prompt_and_transcript"))
    assert torch.equal(both, torch.maximum(prompt, transcript))
    assert not torch.equal(both, prompt)
    assert not torch.equal(both, transcript)


@by_turns(family=sorted(zoo.FAMILIES), lengths=LENGTHS)
def test_every_family_is_asked_and_answers_as_the_masked_full_cache(family, lengths, monkeypatch):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=lengths)
    monkeypatch.setattr(Asker, "of", classmethod(lambda cls, *_: cls(model, Words())))
    check_generate(model, foveate.kvzip(budget=0.5, reads="answers", longest=2), inputs)


@pytest.mark.parametrize("family", ["qwen2_vl", "llava"])
def test_a_branch_keeps_what_a_block_of_its_own_keeps(family):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=(31, 40))
    recording, spec = record(model, **inputs), "kvzip:budget=30%,reads=answers,longest=3"
    with foveate.compress(model, spec, tokenizer=Words()) as session:
        with choices() as own:
            session.prefill(**inputs)
        with choices() as other:
            branch(session, recording)
    same_kept(own, other)


@pytest.mark.parametrize("tokenizer", [Chat(), Parts()], ids=["words", "parts"])
def test_the_words_stand_where_a_user_speaks(tokenizer):
    asker = Asker(zoo.build("llama"), tokenizer, tokenizer)
    assert asker.closing == "</user><model>"


def test_a_model_that_answers_nothing_is_reported(caplog):
    model, inputs = zoo.fresh("llama"), zoo.prompt("llama", lengths=(40,))
    model.generation_config.eos_token_id = list(range(zoo.VOCAB))
    with foveate.compress(model, "kvzip:budget=50%,reads=answers", tokenizer=Words()) as session:
        session.prefill(**inputs)
        assert session.stats.kept_tokens == 20
    assert "answer to 'Ask short questions" in caplog.text


def test_what_cannot_be_asked_is_refused():
    model = zoo.build("llama")
    with pytest.raises(InvalidInput, match=r"tokenizer=\.\.\."):
        foveate.compress(model, "kvzip:budget=50%,reads=answers")
    with pytest.raises(InvalidParameter, match="has no effect with reads=prompt"):
        foveate.policy("kvzip:budget=50%,asks='who?'")
    with pytest.raises(InvalidParameter, match="has no text"):
        foveate.policy("kvzip:budget=50%,reads=answers,asks=' | '")
    policy = foveate.policy("kvzip:budget=50%,reads=answers,asks='who? | what, then?'")
    assert foveate.policy(policy.spec) == policy
    assert policy.score.reading.follow_ups == ("who?", "what, then?")
