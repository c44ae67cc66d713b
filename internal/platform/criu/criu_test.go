package criu

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestMoves: the list survives writing and reading. An image directory without a list has no NICs.
func TestMoves(t *testing.T) {
	dir := t.TempDir()
	if moves, err := readMoves(filepath.Join(dir, list)); err != nil || len(moves) != 0 {
		t.Errorf("without a list: %v, %v", moves, err)
	}
	want := []move{{nic: "red/web", state: "vrdma-red.web.state", pids: []int{7, 8}}, {nic: "red/db", state: "vrdma-red.db.state"}}
	if err := writeMoves(dir, want); err != nil {
		t.Fatal(err)
	}
	if got, err := readMoves(filepath.Join(dir, list)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

// TestDamagedMoves: a list that is not vrdma's is an error that quotes it.
func TestDamagedMoves(t *testing.T) {
	for text, want := range map[string]string{
		"red/web\n":                         `"red/web" names no NIC and file`,
		"red/web ../../etc/shadow\n":        "names no NIC and file",
		"red/web vrdma-red.web.state one\n": `"one" is no process`,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, list), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if moves, err := readMoves(filepath.Join(dir, list)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, %v, want an error with %q", text, moves, err, want)
		}
	}
}

// TestProcesses: this process lives and is a descendant of its parent.
func TestProcesses(t *testing.T) {
	if !lives(os.Getpid()) {
		t.Error("this process does not live")
	}
	if lives(1 << 30) {
		t.Error("a process lives that cannot exist")
	}
	if !slices.Contains(Descendants(os.Getppid()), os.Getpid()) {
		t.Error("this process is no descendant of its parent")
	}
}
