package main

import (
	"regexp"
	"testing"
)

// Where a process's number means something is a label, and the same for all hooks of a host.
func TestBootLabel(t *testing.T) {
	a, err := bootLabel()
	if err != nil {
		t.Fatal(err)
	}
	if b, err := bootLabel(); err != nil || a != b {
		t.Errorf("%s, then %s, %v", a, b, err)
	}
	if len(a) > 63 || !regexp.MustCompile(`^[0-9a-f-]{36}\.[0-9]+$`).MatchString(a) {
		t.Errorf("%q is no label of a boot and a process namespace", a)
	}
}
