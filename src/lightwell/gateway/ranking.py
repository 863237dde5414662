"""Ranking: which of several answers to one prompt are shown, for ``best_of``."""

from lightwell.gateway.answer import Answer, Delta


def best(answers: list[Answer], whole: list[Delta], candidates: int, choices: int) -> list[Delta]:
    """Of each prompt's ``candidates`` the ``choices`` with the highest mean log-probability of their tokens.

    ``whole`` are the finished answers in order, ``candidates`` for each prompt; those returned are numbered anew, the
    best first. Where all are shown they stay as they are.
    """
    if candidates == choices:
        return whole
    kept: list[Delta] = []
    for begin in range(0, len(whole), candidates):
        ranked = sorted(range(begin, begin + candidates), key=lambda index: -_mean_logprob(answers[index]))
        kept += [whole[index] for index in ranked[:choices]]
    for index, choice in enumerate(kept):
        choice.index = index
    return kept


def _mean_logprob(answer: Answer) -> float:
    return answer.logprob / max(answer.output_tokens, 1)
