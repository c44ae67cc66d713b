package bench

import (
	"strings"
	"testing"
)

func TestCountTests(t *testing.T) {
	const output = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA/sub"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"skip","Package":"p","Test":"TestC"}
{"Action":"fail","Package":"p"}
`
	passed, failed, err := countTests(strings.NewReader(output))
	if passed != 1 || failed != 1 || err != nil {
		t.Errorf("got %d, %d, %v, want 1, 1", passed, failed, err)
	}
	if _, _, err := countTests(strings.NewReader("# build failed\n")); err == nil {
		t.Error("no error for something that is not JSON")
	}
}
