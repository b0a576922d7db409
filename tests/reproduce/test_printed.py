"""The papers' figures are those that the papers print."""

from __future__ import annotations

from statistics import mean

import pytest

from foveate.errors import InvalidInput
from foveate_lab.reproduce.tables.printed import printed


@pytest.mark.parametrize(
    ("name", "key", "column", "value"),
    [
        ("mixkv_table1", ("llava-next-mistral-7b", "SnapKV", "64"), "TextVQA", 57.1),
        ("mixkv_table1", ("llava-next-mistral-7b", "SnapKV + MixKV", "64"), "TextVQA", 60.1),
        ("mixkv_table1", ("qwen2-vl-7b", "SparseMM + MixKV", "64"), "TextCaps", 1.303),
        ("mixkv_table1", ("internvl3-8b", "SnapKV + MixKV", "64"), "OCRBench", 52.3),
        ("mixkv_table2", ("qwen2.5-vl-7b", "AdaKV + MixKV", "64"), "Average", 62.7),
        ("mixkv_table4-mixing", ("qwen2-vl-7b", "SnapKV, diversity", "64"), "OCRBench", 50.7),
        ("mixkv_table6", ("internvl3-38b", "AdaKV", "64"), "OCRBench", 67.8),
        ("prefixkv_table1", ("llava-1.5-7b", "PrefixKV", "20%"), "PPL", 3.69),
        ("prefixkv_table2", ("llava-1.5-13b", "PrefixKV", "40%"), "ROUGE", 0.52),
        ("prefixkv_table5", ("llava-1.5-7b", "5 samples", "10%"), "PPL", 7.50),
        ("prefixkv_table15", ("llama-3-8b", "KIVI", "12.5%"), "LongBench", 21.8),
        ("csp_table1-7b", ("llava-1.5-7b", "CSP", "20%"), "S-4", 27.8),
        ("csp_table3-mobilevlm", ("mobilevlm-v2-3b", "CSP", "20%"), "T-2", 47.3),
        ("lookm_table6", ("llava-1.5-7b", "SnapKV", "1%"), "S-3", 0.0),
        ("lookm_table8", ("llava-1.5-7b", "with text prior", "1%"), "NH", 5.3),
        ("david_table7", ("qwen-vl", "DAVID", "40%"), "OCRBench", 478),
    ],
)
def test_headline_figures(name, key, column, value):
    assert printed(name)[key].values[column] == value


def test_sub_scores_of_ocrbench_add_up_but_for_the_one_that_the_paper_has_wrong():
    wrong = []
    for (model, method, _), found in printed("david_table1").items():
        *parts, final = found.values.values()
        if sum(parts) != final:
            wrong.append((model, method, sum(parts), final))
    assert wrong == [("llava-1.5-7b", "LOOK-M", 182, 158)]


def test_averages_of_longbench_are_means_but_for_compressed_llama():
    for (model, method, _), found in printed("mixkv_table3").items():
        *sets, average = found.values.values()
        agrees = abs(mean(sets) - average) < 0.006
        assert agrees == (model == "mistral-7b-v0.2" or method == "Full KV"), (model, method)


def test_deltas_of_a_table_are_its_differences():
    found = printed("mixkv_table1")
    qwen = ("qwen2-vl-7b", "SnapKV", "128"), ("qwen2-vl-7b", "SnapKV + MixKV", "128")
    base, mixed = (found[key].values for key in qwen)
    deltas = {name: round(mixed[name] - base[name], 3) for name in base}
    printed_there = [2.5, 3.5, 3.1, 1.6, 0.2]
    assert list(deltas.values()) == pytest.approx(printed_there, abs=0.051)


def test_a_table_without_figures_is_empty_and_a_file_that_is_missing_an_error():
    assert printed("") == {}
    with pytest.raises(InvalidInput, match=r"csp_fig3\.tsv is missing.*Install foveate anew"):
        printed("csp_fig3")
