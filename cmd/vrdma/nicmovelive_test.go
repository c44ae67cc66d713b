package main

import (
	"slices"
	"strings"
	"testing"
)

func TestOwnerOf(t *testing.T) {
	all := []podmanContainer{{ID: "1", Names: []string{"web"}, Pid: 10}, {ID: "2", Pid: 20}, {ID: "3", Names: []string{"ended"}}}
	family := func(pid int) []int {
		return map[int][]int{0: {0, 30}, 10: {10, 11, 12}, 20: {20, 21}}[pid]
	}
	for _, c := range []struct {
		pids []int
		want string // "": refused
	}{
		{[]int{12}, "web"}, {[]int{10, 11}, "web"}, {[]int{21}, "2"}, {[]int{11, 21}, ""}, {[]int{30}, ""}, {[]int{99}, ""},
	} {
		got, err := ownerOf(c.pids, all, family)
		if c.want == "" && err == nil || c.want != "" && (err != nil || got.name() != c.want) {
			t.Errorf("%v: container %q, %v; want %q", c.pids, got.name(), err, c.want)
		}
	}
}

func TestShellTo(t *testing.T) {
	t.Setenv("VRDMA_RSH", "")
	if got := shellTo("", "node-b"); !slices.Equal(got, []string{"ssh", "-o", "BatchMode=yes", "node-b"}) {
		t.Errorf("the usual shell is %q", got)
	}
	if got := strings.Join(shellTo("ssh -p 22", "b"), "|"); got != "ssh|-p|22|b" {
		t.Errorf("--rsh: %q", got)
	}
	t.Setenv("VRDMA_RSH", "rsh -x")
	if got := strings.Join(shellTo("", "b"), "|"); got != "rsh|-x|b" {
		t.Errorf("VRDMA_RSH: %q", got)
	}
}
