package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestPrograms(t *testing.T) {
	f := flags{socket: "/s", node: "n", kubelet: "/k", cdi: "/c", slots: 7}
	got := f.programs("/bin/vrdma-kube", true, []string{"--mode", "0666"})
	want := []string{
		"/bin/vrdma daemon --socket /s --mode 0666",
		"/bin/vrdma-kube device-plugin --socket /s --node n --kubelet /k --cdi /c --slots 7",
		"/bin/vrdma-kube dra --socket /s --node n --kubelet /k --cdi /c --slots 7",
	}
	for i, argv := range got {
		if line := strings.Join(argv, " "); i >= len(want) || line != want[i] {
			t.Errorf("program %d: %s", i, line)
		}
	}
	if n := len(f.programs("/bin/vrdma-kube", false, nil)); n != 2 {
		t.Errorf("%d programs without DRA", n)
	}
	// The commands know these flags.
	root := command()
	for _, argv := range got[1:] {
		c, rest, err := root.Find(argv[1:])
		if err != nil || c.Name() != argv[1] {
			t.Fatalf("%v: %v", argv, err)
		}
		if err := c.ParseFlags(rest); err != nil {
			t.Errorf("%v: %v", argv, err)
		}
	}
}

// A program that ends is restarted, and all programs end with the supervisor; one of them ignores SIGTERM and is killed.
func TestSupervise(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	file := filepath.Join(dir, "starts")
	go func() {
		ended <- supervise(ctx, slog.New(slog.NewTextHandler(t.Output(), nil)), [][]string{
			{"/bin/sh", "-c", "echo one >>" + file},
			{"/bin/sh", "-c", "trap 'echo term >>" + file + "; exit' TERM; echo two >>" + file + "; while :; do sleep 0.01; done"},
			{filepath.Join(dir, "none"), "-"},
		}, time.Millisecond, time.Minute)
	}()
	lines := func() []string { text, _ := os.ReadFile(file); return strings.Fields(string(text)) }
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		now := lines()
		if slices.Contains(now, "two") && strings.Count(strings.Join(now, " "), "one") > 2 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("started: %v", now)
		}
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("does not end")
	}
	if now := lines(); !slices.Contains(now, "term") || strings.Count(strings.Join(now, " "), "two") != 1 {
		t.Errorf("in the end: %v", now)
	}
}
