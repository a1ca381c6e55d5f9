package lint

import "strings"

// Suggest returns the most similar candidate, or "" if none is similar. It works for keys, verbs
// and role names.
func Suggest(word string, candidates []string) string {
	best, bestDistance := "", max(1, len(word)/3)+1
	for _, c := range candidates {
		if d := distance(strings.ToLower(word), strings.ToLower(c), bestDistance); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance returns the number of insertions, deletions, replacements and swaps of adjacent
// characters from a to b, up to limit.
func distance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	before, last, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(last[j]+1, cur[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, last, cur = last, cur, before
	}
	return min(last[len(b)], limit)
}
