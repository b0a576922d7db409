"""Where the five papers, their authors' code and Foveate differ: docs/papers has the same lines.

Lines (L52) are those of a paper's plain text.
"""

from __future__ import annotations

from collections.abc import Mapping

DIFFERENCES: Mapping[str, tuple[str, ...]] = {
    "mixkv": (
        "The text scales diversity to the mean of the combined importance, the code to that "
        "of the attention; the text's weight is about twice the code's. The default follows "
        "the code; `diversity_scale=importance` is the text.",
        "The text takes minima, maxima and means over all T tokens; the code over those "
        "before the window, as is done here; `normalise_over=all` is the text.",
        "The released repository reads one table of redundancies, made for a Qwen model, "
        "whatever the model; the authors' GUI grounding code "
        "(`sakura-gui/GUI-grounding-MixKV`) measures each prompt, as the default does here.",
        "Eq. 4 is a mean of cosines, and can fall below zero where keys point apart; eq. 5 "
        "then takes diversity off. Here it is not below zero unless `clamped=False` says so; "
        "the code does not clamp.",
        "Over AdaKV the code counts pairs per head by the attention alone; the paper does not say.",
        "The code's value norms have no epsilon, which the text has; here every normalisation "
        "has one.",
        "Appendix A.7 says that models up to 8B were studied; Tables 6 and 7 have 38B and 30B-A3B.",
    ),
    "prefixkv": (
        "Algorithm 1 has no end where no p meets the budget; section 3.3 therefore allows a "
        "tolerance and scaling. Here the search ends after 64 steps, or within `delta`; what "
        "it found is scaled, and what rounding leaves is spread over the layers.",
        "The release stops within 5 tokens of its aim, then rescales with `int()`. In the "
        "recorded runs it keeps 290 and 293 tokens instead of 288. Its loop does not end on "
        "equal scores.",
        "The release computes the kept ratio as `1 - (T - kept) / T` in floating point. Where "
        "the ratio meets a whole token, a pair is dropped one step later than by exact "
        "arithmetic, which is used here: one drop in the recorded runs.",
        "The text drops pairs at a fixed distance from the latest token. The release uses a "
        "fixed cache slot, 25 before the end of the compressed prompt, or half of it where it "
        "is shorter. So is it here; `counted_from=newest` is the text (L55, L145).",
        "In the release new queries continue at the compressed length of layer 0. Here they "
        "keep their true positions.",
        "Section 3.2 defines the Gini coefficient as an area. `foveate_lab.analysis.gini` is the "
        "usual one, twice that area.",
    ),
    "csp": (
        "Eq. 3 intersects the lists. Where the window holds text alone, their members are of "
        "different modalities and the intersection is empty. The release joins the lists "
        "instead and stores what both name twice, which doubles the weight of a pair and "
        'spends budget on it: `combine="concat"`. There the copy stands in the slot of the '
        "token that the union would have kept, and reports show it there.",
        "The release takes `int(k * (1 - ratio))` and `int(k * ratio)` places, so an odd k "
        "loses one (`fill=False`). For a ratio of 0 it has numbers written in, 1 and 308, "
        "whatever k is: not copied.",
        "`bias` of EgocentricNavigation and SlideVQA is 0.5 and 1.5 in section 4.3, and 1.5 "
        "and 0.5 in the release's configuration.",
        "The text averages the heads before ranking; the release ranks each head. The default "
        "follows it.",
        "Eq. 1 prints the limits of the two cross sums the wrong way round for the shapes "
        "that it states.",
        "Eqs. 11 and 12 lack a factor: the weights of softmax-n add up to less than one, so "
        "the expectation under them has a factor Z+ / (Z+ + n). Closer to the full cache for "
        "every n does not follow.",
        "Section 5.1 calls ratio 1 self attention only; Appendix A calls cross ratio 0 so, as "
        "is done here.",
        "Realised memory: Table 2 measures 30 % of the full cache at a budget of 20 %.",
        "In Table 1 the base row of LLaVA-13b repeats that of LLaVA-7b in all columns but T-1.",
        "Algorithm 1 prunes whenever the cache is over its budget (lines 2 to 6). By default, "
        "and in every experiment here, it prunes once, after the prompt; `when=over_budget` "
        "is the algorithm.",
    ),
    "david": (
        "Decoupling stops on a small fall of the rate in eq. 7 and Algorithm 1, on an abrupt "
        "drop in the prose above eq. 7, and below a threshold of the rate itself in Fig. 2. "
        "All three are `rule`s; eq. 7 is the default, and what is run here.",
        "Eq. 6 divides by r and line 16 of Algorithm 1 does not. Without it the first rate is "
        "far above 1, and decoupling never starts. Here it is divided; `normalised=false` is "
        "line 16.",
        "rho is B_V / B_T in the text; line 28 gives vision 1/(1 + rho), which is text's share. "
        "The default is the text; `split=algorithm` is line 28.",
        "Eq. 3 pools over all keys, recent ones included, whose scores then leak into the "
        "last two candidates. The default pools without them, as SnapKV does (`pool_window`): "
        "the first row of Table 4 equals the SnapKV column of Table 1.",
        "Eq. 2 indexes attention the other way round than eq. 1.",
        "Added where the paper is silent: places that one modality cannot fill go to the other.",
        "Realised memory: Table 5 measures 14 % of the full cache at a budget of 5 %.",
    ),
    "lookm": (
        "The sums of eqs. 10 to 12 run from 0 to L_sim, one term too many; here n pairs "
        "merge, over n + 1.",
        "The release filters by an evicted key's rank in its head's list: the i-th of all "
        "heads together, whichever tokens they are, pass if their mean cosine reaches the "
        "mean of all.",
        "Its averaged merge adds the first rows of all evicted keys where those that passed "
        "belong.",
        "With text prior it keeps all text: 48 pairs against a budget of 18 in one run of it. "
        "Here the budget is that of eq. 8, and text that does not fit goes.",
        "It adds -65516 to images. In float16 all their scores below 16 become equal.",
        "Section 4.3 speaks of nine variants of the method; Table 1 has six, and three baselines.",
    ),
}
"""By the name of the method."""
