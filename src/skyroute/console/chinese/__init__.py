"""What the console says, in Chinese, by the English text: one module for each module of pages."""

from skyroute.console.chinese import cluster, common, groups, history, messages, overview, topics

WORDS: dict[str, str] = {
    **common.WORDS,
    **groups.WORDS,
    **overview.WORDS,
    **cluster.WORDS,
    **history.WORDS,
    **messages.WORDS,
    **topics.WORDS,
}
