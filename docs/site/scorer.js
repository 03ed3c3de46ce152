// The scores of search results, which Sphinx's searchtools.js reads. A function is found under several names: the
// shortest is the canonical one, and names that programs seldom import come last.
const SELDOM = /^shardwise\.(experimental|example_libraries|extend|jax_modules)\./;

var Scorer = {
  score: ([docname, title, anchor, descr, score, filename, kind]) => {
    if (kind !== "object") return score;
    const depth = title.split(".").length;
    // Less than the difference between two kinds of matches, so that it only orders matches of one kind.
    return score - 0.1 * depth - (SELDOM.test(title) ? 1 : 0) + (title.startsWith("shardwise.numpy.") ? 0.05 : 0);
  },

  // Sphinx's defaults, except for a name that matches exactly: it comes before pages with the word in their title.
  objNameMatch: 30,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
