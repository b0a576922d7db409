"""Clients that try to reach each other: what they ask, when they come and go by the engine's steps,
and what each of them was answered. The same script is played twice, with other contents of every
second prompt: the others must not notice.
"""

import random
from dataclasses import dataclass, field
from functools import partial

from tests.serving.engine import greedy
from tests.serving.tiny import QWEN_IMAGE
from tests.serving.tiny_text import VOCABULARY

FIRST = 3  # token of prompts; those before are special
CONTEXTS = (33, 97, 160, 170, 190, 191)

# Budgets as (written, written otherwise): the same amount. Python takes 1, 1.0 and True for one.
SAME = (
    (1, "1"),
    (1.0, "100%"),
    ("1.0", 1.0),
    ("100%", "1.0"),
    ("1", 1),
    (40, "40"),
    (0.4, "40%"),
    ("0.25", 0.25),
    ("12.5%", 0.125),
)
WRONG = (True, False, "64MB", "auto(0.9)", [1], 0, 0.0, -1, 1.5, "", "two", "150%", float("nan"))


@dataclass(frozen=True)
class Client:
    """Comes before the engine's step ``comes``, and leaves before another one, or never. ``asked``
    are its extra arguments, and the same written otherwise. ``moves`` says that its contents
    change. Clients of another ``salt`` share nothing.
    """

    name: str
    comes: int
    prompt: int
    moves: bool
    asked: tuple[dict, dict]
    tokens: int
    priority: int
    leaves: int | None
    salt: str | None


@dataclass
class Prompts:
    """Prompts that begin alike: every one has one of a few beginnings and an end of its own. Every
    second one ``moves``; those that begin as one that stays keep their beginning.
    """

    seed: int
    count: int = 60
    longest: int = 200
    found: list = field(init=False)

    def __post_init__(self):
        draw = random.Random(self.seed)
        word = partial(draw.randrange, FIRST, VOCABULARY)
        begins = [[word() for _ in range(draw.choice([33, 64, 70, 128]))] for _ in range(6)]
        self.found = []
        for number in range(self.count):
            begin = draw.choice(begins[:4] if number % 2 else begins)
            rest = self.longest - len(begin)
            end = [word() for _ in range(draw.choice([1, 30, rest - 7, rest - 4, rest - 1, rest]))]
            self.found.append((begin, end[: self.longest - len(begin)], begins.index(begin) < 4))

    def __call__(self, number, moved):
        begin, end, common = self.found[number]
        if not moved:
            return {"prompt_token_ids": begin + end}
        return {"prompt_token_ids": (begin if common else other(begin)) + other(end)}

    def length(self, number):
        begin, end, _ = self.found[number]
        return len(begin) + len(end)


class Pictures(Prompts):
    """Prompts with images of Qwen2-VL. Contents move where images, and the text behind, do."""

    def __call__(self, number, moved):
        from tests.serving.test_images import noise

        draw = random.Random(number)
        shown = [
            noise(number * 7 + i + 1000 * moved, 28 * draw.randint(2, 6), 28 * draw.randint(2, 5))
            for i in range(draw.choice([0, 1, 1, 2]))
        ]
        letters = draw.choices("abcdefgh", k=draw.randint(4, 60))
        text = "".join(chr(ord(letter) + 8 * moved) for letter in letters)
        said = f"see this, and that, too: {QWEN_IMAGE * len(shown)}{text}"
        chat = f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"
        return {"prompt": chat} | ({"multi_modal_data": {"image": shown}} if shown else {})

    def length(self, number):
        return 30  # at least


def other(tokens):
    """Other tokens, equal where these are equal."""
    size = VOCABULARY - FIRST
    return [FIRST + (token - FIRST + 29) % size for token in tokens]


def script(seed, count, prompts, policies, least, priorities):
    """So many clients, in the order in which they come. ``least`` is a budget that all of these
    policies can have.
    """
    draw, clients, step = random.Random(seed), [], 0
    for number in range(count):
        step += draw.choice([0, 0, 0, 1, 1, 2, 6])
        prompt = draw.randrange(prompts.count)
        leaves = draw.choice([None] * 8 + [step, step + draw.randint(1, 30)])
        clients.append(
            Client(
                name=f"c{number}",
                comes=step,
                prompt=prompt,
                moves=prompt % 2 == 0,
                asked=asked(draw, prompts.length(prompt), policies, least),
                tokens=draw.choice([1, 6, 24, 40]),
                priority=draw.randrange(3) if priorities else 0,
                leaves=leaves,
                salt=draw.choice([None, None, None, "a", "b"]),
            )
        )
    return clients


def asked(draw, length, policies, least):
    """What a client asks of Foveate, and the same written otherwise. Policies that compress again
    are drawn twice as often, and rarely with a context, which is refused beside them.
    """
    given, again = {}, [policy for policy in policies if "over_budget" in policy]
    if draw.random() < 0.2:  # in blocks of 32 another gap than in blocks of 64
        return ({"foveate_context": min(190, length)},) * 2
    if draw.random() < 0.5:
        given["foveate_policy"] = draw.choice([*policies, *again, "full"])
    if draw.random() < (0.05 if given.get("foveate_policy") in again else 0.5):
        given["foveate_context"] = draw.choice([min(n, length) for n in CONTEXTS])
    if given.get("foveate_policy") == "full" or draw.random() < 0.3:
        return given, given
    some = draw.randint(10, 99)
    fits = [pair for pair in SAME if least == 1 or pair[0] not in (1, "1")]
    pair = draw.choice([*fits, *fits, (f"{some}%", some / 100), (some, str(some))])
    if draw.random() < 0.05:
        pair = (draw.choice(WRONG),) * 2
    return given | {"foveate_budget": pair[0]}, given | {"foveate_budget": pair[1]}


@dataclass
class Played:
    """What became of the clients: of each the last that it was answered, by name; what the
    scheduler planned for it; and how many were refused, were preempted, or found a beginning.
    """

    answers: dict = field(default_factory=dict)
    plans: dict = field(default_factory=dict)
    refused: set = field(default_factory=set)
    failed: set = field(default_factory=set)
    unscheduled: set = field(default_factory=set)
    preempted: int = 0
    found: int = 0


def play(llm, clients, prompts, moved):
    """Serves the clients; where ``moved``, with other contents of the prompts that move, whose
    clients write their budgets otherwise.
    """
    from vllm.exceptions import VLLMValidationError

    front, done, step = llm.llm_engine, Played(), 0
    scheduler = front.engine_core.engine_core.scheduler
    left = list(clients)
    while left or front.has_unfinished_requests():
        while left and left[0].comes <= step:
            client = left.pop(0)
            if client.leaves == client.comes:
                done.unscheduled.add(client.name)
            told = moved and client.moves
            params = greedy(client.tokens, client.asked[told], logprobs=2)
            salted = {} if client.salt is None else {"cache_salt": client.salt}
            prompt = prompts(client.prompt, told) | salted
            try:
                front.add_request(client.name, prompt, params, priority=client.priority)
            except VLLMValidationError:
                done.refused.add(client.name)
                continue
            done.plans[client.name] = planned(scheduler, client.name)
        for client in clients:
            if client.leaves == step and client.name not in done.refused:
                front.abort_request([client.name])
        for output in front.step():
            (one,) = output.outputs
            rows = [[(t, p.logprob) for t, p in row.items()] for row in one.logprobs or ()]
            done.answers[output.request_id] = list(one.token_ids), rows, one.finish_reason
            done.found += output.finished and output.num_cached_tokens > 0
            if one.finish_reason == "error":
                done.failed.add(output.request_id)
        done.preempted += sum(one.num_preemptions > 0 for one in scheduler.waiting)
        step += 1
    front.step()  # the workers hear of those that ended last with the next step
    return done


def planned(scheduler, name):
    """The plan of a request, whose name vLLM has lengthened."""
    (plan,) = (
        plan for key, plan in scheduler.plans.items() if name in (key, key.rpartition("-")[0])
    )
    return plan
