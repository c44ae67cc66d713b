package order

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

type pair struct{ a, b int }

func TestSort(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		list := make([]pair, rnd.IntN(50))
		for i := range list {
			list[i] = pair{rnd.IntN(10), i}
		}
		whole := func(x, y pair) int { return cmp.Or(cmp.Compare(x.a, y.a), cmp.Compare(x.b, y.b)) }
		want := slices.Clone(list)
		slices.SortFunc(want, whole)
		stable := slices.Clone(list)
		SortStableFunc(stable, func(x, y pair) int { return cmp.Compare(x.a, y.a) })
		SortFunc(list, whole)
		if !slices.Equal(list, want) || !slices.Equal(stable, want) {
			t.Fatalf("sorted %v and %v, want %v", list, stable, want)
		}
	}
}
