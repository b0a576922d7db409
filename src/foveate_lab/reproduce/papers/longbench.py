"""LongBench's 16 English sets, by the names that papers print over their columns."""

LONGBENCH = {
    "NrtvQA": "longbench_narrativeqa",
    "Qasper": "longbench_qasper",
    "MF-en": "longbench_multifieldqa_en",
    "HotpotQA": "longbench_hotpotqa",
    "2WikiMQA": "longbench_2wikimqa",
    "Musique": "longbench_musique",
    "GovReport": "longbench_gov_report",
    "QMSum": "longbench_qmsum",
    "MultiNews": "longbench_multi_news",
    "TREC": "longbench_trec",
    "TriviaQA": "longbench_triviaqa",
    "SAMSum": "longbench_samsum",
    "PCount": "longbench_passage_count",
    "PRe": "longbench_passage_retrieval_en",
    "LCC": "longbench_lcc",
    "RB-P": "longbench_repobench-p",
}
