package engine

import (
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// TestTasks: a client's tasks are found by handle, and rows that are empty are given back.
func TestTasks(t *testing.T) {
	var l tasks
	handles := []uint32{0, 63, 64, 200, protocol.DoorbellBits - 1}
	want := map[uint32]*task{}
	for _, h := range handles {
		want[h] = new(task)
		l.add(h, want[h])
	}
	check := func() {
		t.Helper()
		for h := range uint32(protocol.DoorbellBits) {
			if got := l.row(int(h / 64))[h%64]; got != want[h] {
				t.Fatalf("handle %d: %p, want %p", h, got, want[h])
			}
		}
	}
	check()
	for _, h := range handles {
		l.remove(h)
		delete(want, h)
		check()
	}
	for word, r := range l {
		if r != nil {
			t.Errorf("the row of word %d is empty and kept", word)
		}
	}
	if noTasks != (row{}) {
		t.Error("the row of no tasks has some")
	}
}
