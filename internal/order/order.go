// Package order sorts where speed is no concern. slices.SortFunc is compiled once for every type, some 20 kB each with
// the tables that belong to it; this is one copy for all.
package order

import "sort"

// SortFunc is slices.SortFunc.
func SortFunc[S ~[]E, E any](s S, cmp func(a, b E) int) {
	sort.Slice(s, func(i, j int) bool { return cmp(s[i], s[j]) < 0 })
}

// SortStableFunc is slices.SortStableFunc.
func SortStableFunc[S ~[]E, E any](s S, cmp func(a, b E) int) {
	sort.SliceStable(s, func(i, j int) bool { return cmp(s[i], s[j]) < 0 })
}
