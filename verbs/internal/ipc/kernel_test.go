package ipc

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// device describes one of the kernel's devices as /sys does; software ones have a parent.
type device struct {
	name, abi string
	software  bool
}

func sysTree(t *testing.T, list ...device) string {
	t.Helper()
	sys := t.TempDir()
	write := func(text string, path ...string) {
		t.Helper()
		name := filepath.Join(append([]string{sys, "class"}, path...)...)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text+"\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for i, d := range list {
		uverbs := "uverbs" + string(rune('0'+i))
		write(d.name, "infiniband_verbs", uverbs, "ibdev")
		write(d.abi, "infiniband_verbs", uverbs, "abi_version")
		write("1", "infiniband", d.name, "node_type")
		if d.software {
			write("eth0", "infiniband", d.name, "parent")
		}
	}
	return sys
}

func TestFindKernel(t *testing.T) {
	mlx, rxe, siw := device{"mlx5_0", "1", false}, device{"rxe7", "2", true}, device{"siw0", "1", true}
	tests := []struct {
		name   string
		list   []device
		wanted string
		uverbs string
		says   string // empty: it is found
	}{
		{"rxe alone", []device{rxe}, "", "uverbs0", ""},
		{"rxe behind hardware", []device{mlx, rxe}, "", "uverbs1", ""},
		{"by name", []device{mlx, rxe}, "rxe7", "uverbs1", ""},
		{"only hardware", []device{mlx}, "", "", "only devices whose queues this package does not know (mlx5_0)"},
		{"other software", []device{siw, mlx}, "", "", "siw0, mlx5_0"},
		{"hardware by name", []device{mlx, rxe}, "mlx5_0", "", `no rxe device "mlx5_0"`},
		{"a wrong name", []device{rxe}, "rxe8", "", "it has rxe7"},
		{"nothing", nil, "", "", "no RDMA device"},
	}
	for _, x := range tests {
		t.Run(x.name, func(t *testing.T) {
			uverbs, _, err := FindKernel(sysTree(t, x.list...), x.wanted)
			if x.says == "" && (err != nil || uverbs != x.uverbs) {
				t.Errorf("found %q, %v; want %s", uverbs, err, x.uverbs)
			}
			if x.says != "" && (err == nil || !strings.Contains(err.Error(), x.says)) {
				t.Errorf("found %q, %v; want an error with %q", uverbs, err, x.says)
			}
		})
	}
}
