package bench

import (
	"slices"
	"strings"
	"testing"
)

func TestParseTests(t *testing.T) {
	const output = `{"Action":"start","Package":"v/link"}
{"Action":"run","Package":"v/link","Test":"TestA"}
{"Action":"pass","Package":"v/link","Test":"TestA/sub"}
{"Action":"pass","Package":"v/link","Test":"TestA"}
{"Action":"fail","Package":"v/memory","Test":"TestB"}
{"Action":"skip","Package":"v/link","Test":"TestC"}
{"Action":"fail","Package":"v/memory"}
`
	tests, err := parseTests(strings.NewReader(output))
	want := testList{{"link", "TestA", false}, {"memory", "TestB", true}}
	if !slices.Equal(tests, want) || err != nil {
		t.Fatalf("got %v, %v, want %v", tests, err, want)
	}
	all := tests.failures(func(string) bool { return true })
	link := tests.failures(func(pkg string) bool { return pkg == "link" })
	none := tests.failures(func(string) bool { return false })
	if all.Name != "2 tests that count" || all.Median() != 1 || link.Name != "1 tests that count" || link.Median() != 0 || len(none.Values) != 0 {
		t.Errorf("got %v, %v, %v", all, link, none)
	}
	if _, err := parseTests(strings.NewReader("# build failed\n")); err == nil {
		t.Error("no error for something that is not JSON")
	}
}
