"""Table of ``docs/coming_from_kvpress.md``: names that kvpress exports, with specs of Foveate.

``tests/golden/test_kvpress.py`` compares those marked "same" with results of kvpress.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Press(NamedTuple):
    """A press of kvpress, and the spec that does the same or comes near.

    ``about`` says what differs; without a spec, why there is none.
    """

    call: str
    how: Literal["same", "near", "none"]
    spec: str
    about: str

    @property
    def name(self) -> str:
        """Name that kvpress exports."""
        return self.call.split("(")[0]


def same(call: str, spec: str, about: str = "") -> Press:
    """Return a press whose spec keeps the same tokens."""
    return Press(call, "same", spec, about)


def near(call: str, spec: str, about: str) -> Press:
    """Return a press whose spec follows the same idea; ``about`` says what differs."""
    return Press(call, "near", spec, about)


def none(call: str, about: str) -> Press:
    """Return a press without a spec; ``about`` says why, and what comes nearest."""
    return Press(call, "none", "", about)


TRAINED = "needs weights that were trained for a model, and Foveate brings none"
GUARANTEED = (
    "and heads really store different numbers. `alpha_safeguard` is `floor`; without `guaranteed` "
    "it is mixed with the ranking, as in the paper"
)
PRESSES = (
    same(
        "AdaKVPress(SnapKVPress(0.8))",
        "adakv:budget=20%,guaranteed=true,window=64,kernel=5,pool=avg",
        f"{GUARANTEED}. Of any other score: `keydiff+adakv`",
    ),
    none("BasePress", "a stage of your own is a dataclass ([CONTRIBUTING](../CONTRIBUTING.md))"),
    same(
        "BlockPress(KeyDiffPress(0.8), block_size=128)",
        "keydiff:budget=20%,when=over_budget(every=128,reading=true)",
        "with `model.generate(..., prefill_chunk_size=128)`, if the budget is a multiple of that. "
        "The cache really stays that small while the prompt is read, so later chunks attend to "
        "what is left, where kvpress has read all of it before",
    ),
    near(
        "CAMPress(ObservedAttentionPress(), target_size=2048)",
        "cam:budget=2048,when=over_budget(every=512)",
        "other draws, from `seed`; what is kept goes head by head and by the attention that is "
        "added up, and every evicted value may merge; the prompt is compressed as well",
    ),
    same("CURPress(0.8)", "cur:budget=20%"),
    none(
        "CapPress",
        "no leverage of values weighed by queries; `expected_attention` and `cur` come nearest",
    ),
    near(
        "ChunkKVPress(SnapKVPress(0.8))",
        "chunkkv:budget=20%,length=20,window=64,pool=avg",
        "the same ranking of chunks; kvpress keeps a number of them, rounded down, and ours cuts "
        "the last one, so that the budget is exact. Of any other score: `keydiff+chunkkv`",
    ),
    near(
        "ChunkPress(KnormPress(0.8))",
        "knorm:budget=20%,select=top_k_of_chunks(length=1024)",
        "the same but for rounding: kvpress rounds every part down by itself, ours is exact in "
        "all. Scores that compare tokens do so over the whole prompt, not within a part",
    ),
    near(
        "CompactorPress(0.8)",
        "compactor:budget=20%",
        "the same where positions turn nothing: the leverage is of keys as they are cached, after "
        "the rotation; the sketch is drawn otherwise, and `sketch=null` is exact",
    ),
    none(
        "ComposedPress",
        "rankings do not follow one another; methods add up instead, each with its own stage: "
        "`snapkv+pyramidkv`, `snapkv+kivi` ([composition.md](composition.md))",
    ),
    near(
        "CompressionRatioDecodingPress(KnormPress(), target_compression_ratio=0.8)",
        "knorm:budget=20%,when=fixed_slot(every=512)",
        "the same share of all tokens seen, but what is taken out while decoding goes by its "
        "place, not by its score; the prompt is compressed as well",
    ),
    same(
        "CriticalAdaKVPress(SnapKVPress(0.8))",
        "criticalkv+adakv:budget=20%,floor=0.2,guaranteed=true,window=64",
        GUARANTEED,
    ),
    same("CriticalKVPress(SnapKVPress(0.8))", "criticalkv:budget=20%,window=64"),
    same(
        "DMSPress(KnormPress(), threshold=-4, sliding_window_size=128, decoding=True)",
        "knorm:recent=128,budget=above_threshold(threshold=-4),when=over_budget",
        "of any score; without `when` only the prompt, as with `decoding=False`. What kvpress "
        "hides is gone here",
    ),
    near(
        "DecodingPress(KnormPress(), compression_interval=512, target_size=2048)",
        "knorm:budget=2048,when=over_budget(every=512)",
        "the same after a prompt of that size. A longer one is compressed to it as well; after a "
        "shorter one kvpress counts steps, and ours the pairs beyond the budget",
    ),
    near(
        "DuoAttentionPress(head_compression_ratio=0.5)",
        "duo_attention:budget=50%,profile=duo_attention.json,sinks=128,recent=256",
        "the same heads, if the budget is what they need: as many keep everything as it holds. "
        "`foveate.import_head_scores` reads the file of scores that kvpress downloads",
    ),
    none("EntropyGatedChunkKVPress", "see `ChunkKVPress`, without the entropy of chunks"),
    near(
        "ExpectedAttentionPress(0.8)",
        "expected_attention:budget=20%",
        "the same formula. Queries are the last 256 as they were rotated, and the sinks count, "
        "where kvpress takes all before the rotation and turns them to the next 512 positions",
    ),
    same(
        "ExpectedAttentionStatsPress(0.8)",
        "expected_attention:budget=20%,profile=expected_attention.safetensors,future=512",
        "with the same statistics; `foveate calibrate expected_attention` measures them on your "
        "model, where kvpress downloads those of some models",
    ),
    near(
        "FastKVzipPress(0.8)",
        "fast_kvzip:budget=20%,profile=fast_kvzip.safetensors",
        "the same gates: `foveate calibrate fast_kvzip --from FILE.pt` converts a file of the "
        "authors, which kvpress downloads, and without `--from` trains gates of your model. One "
        "ranking of all heads and layers",
    ),
    same(
        "FinchPress(0.8, rerotate_keys=False)",
        "finch:budget=20%",
        "with `window=` the question's number of tokens instead of a delimiter before it; "
        "`chunk_length` is `chunk`, exact in all",
    ),
    none(
        "KVComposePress",
        "puts pairs of different tokens into one slot, so that heads stay in step; here heads that "
        "keep different tokens are stored so (`adakv`, `headkv`)",
    ),
    none("KVPressTextGenerationPipeline", "`foveate.Pipeline`, as above"),
    none("KVgradPress", "no backward pass through the prompt"),
    near(
        "KVzapPress(...) in DMSPress(threshold=-4)",
        "kvzap:threshold=-4.0,profile=kvzap.safetensors",
        "the same threshold and window on scores that `foveate calibrate kvzap` fits on your model "
        "in minutes: linear maps of a head's own keys and values, where kvpress loads networks of "
        "hidden states that were trained for some models",
    ),
    near(
        "KVzipPress(0.8)",
        "kvzip:budget=20%,sinks=4",
        "the same score and one ranking. No instruction stands before the second reading, pieces "
        "are `chunk` tokens long, and images are read again, too; only what is kept is stored. "
        "`kvzip_plus_normalization=True` is `by=contribution`",
    ),
    same("KeyDiffPress(0.8)", "keydiff:budget=20%"),
    none(
        "KeyRerotationPress",
        "not needed: kept tokens stay at their true positions, and so do those that follow",
    ),
    same("KnormPress(0.8)", "knorm:budget=20%"),
    near(
        "LUKVPress(KeyDiffPress(), 0.8)",
        "keydiff+headkv.budget:budget=20%,profile=headkv.json",
        "a share for every layer and head, measured on your model by `foveate calibrate headkv` "
        "instead of loaded for one model",
    ),
    same("LagKVPress(0.8)", "lagkv:budget=20%"),
    near(
        "LeverageScorePress(0.8)",
        "leverage:budget=20%",
        "of keys as they are cached, after the rotation; the sketch is drawn otherwise, and "
        "`sketch=null` is exact",
    ),
    near(
        "MergingPress(SnapKVPress(0.8))",
        "snapkv+lookm.merge:budget=20%,window=64",
        "every pair merges into the kept one with the most similar key, keys as well as values",
    ),
    same("NonCausalAttnPress(0.8)", "non_causal_attention:budget=20%,as_released=true"),
    same(
        "ObservedAttentionPress(0.8)",
        "h2o:budget=20%,recent=0,score=mean_attention",
        "with any attention implementation. `h2o` alone is the paper: sums, and recent tokens",
    ),
    none(
        "PerLayerCompressionPress",
        "shares of layers are found, not given: `pyramidkv`, `prefixkv`, `vl_cache`, `meda`",
    ),
    near(
        "PrefillDecodingPress(SnapKVPress(0.8), DecodingPress(SnapKVPress()))",
        "snapkv:budget=20%,window=64,when=over_budget(every=512)",
        "one policy for both; the cache goes back to what the prompt was compressed to",
    ),
    near(
        "PyramidKVPress(0.8)",
        "pyramidkv:budget=20%,window=64,kernel=5,pool=avg",
        "the same scores; kvpress draws its line through the whole budget and rounds each layer by "
        "itself, ours stands beside the window, as in the authors' code, and adds up exactly",
    ),
    same(
        "QFilterPress(0.8)",
        "q_filters:budget=20%,profile=q_filters.safetensors",
        "with the same filters; `foveate calibrate q_filters` measures them on your model, where "
        "kvpress downloads those of some models",
    ),
    near("RandomPress(0.8)", "random:budget=20%", "other draws: a token's follows from its place"),
    none("RestoreKVPress", TRAINED),
    none(
        "ScorerPress",
        "`foveate.stages.score.FromKvpress(press=...)` takes a scorer as it is, if keys, values "
        "and attention are all that it needs",
    ),
    near(
        "SimLayerKVPress(lazy_threshold=0.9)",
        "simlayerkv:budget=20%",
        "the same layers, if the budget is what they need: it says how many keep everything, where "
        "kvpress has a threshold; `recent` is half of it, or a number of tokens",
    ),
    same("SnapKVPress(0.8)", "snapkv:budget=20%,window=64"),
    same("StreamingLLMPress(0.8)", "streaming_llm:budget=20%"),
    same("TOVAPress(0.8)", "tova:budget=20%"),
    near(
        "ThinKPress(0.4) after SnapKVPress(0.8)",
        "snapkv+think:budget=20%,prune=0.4",
        "the same measure; ours goes by the keys that are kept, leaves those of the window whole, "
        "and does not hold the channels, where kvpress fills them with zeros",
    ),
)


def table() -> str:
    """Return one row per name, in alphabetical order."""
    rows = ["| kvpress | Foveate | what is to know |", "|---|---|---|"]
    for press in sorted(PRESSES, key=lambda press: press.name.lower()):
        spec = f"`{press.spec}`" if press.spec else "none"
        how = {"same": "the same", "near": "near: ", "none": ""}[press.how]
        if press.how == "same" and press.about:
            how += ", "
        rows.append(f"| `{press.call}` | {spec} | {how}{press.about} |")
    return "\n".join(rows)
