// Package order sorts where speed is no concern. slices.SortFunc is compiled once for every type, some 20 kB each with
// the tables that belong to it; this is one copy for all.
package order

import (
	"iter"
	"slices"
	"sort"
)

// SortFunc is slices.SortFunc.
func SortFunc[S ~[]E, E any](s S, cmp func(a, b E) int) {
	sort.Slice(s, func(i, j int) bool { return cmp(s[i], s[j]) < 0 })
}

// SortStableFunc is slices.SortStableFunc.
func SortStableFunc[S ~[]E, E any](s S, cmp func(a, b E) int) {
	sort.SliceStable(s, func(i, j int) bool { return cmp(s[i], s[j]) < 0 })
}

// SortedFunc is slices.SortedFunc.
func SortedFunc[E any](seq iter.Seq[E], cmp func(a, b E) int) []E {
	s := slices.Collect(seq)
	SortFunc(s, cmp)
	return s
}
