package test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// TestPinnedProgram runs the program that tools/nccl-check runs on a GPU, with a libcuda that pins nothing. It tests
// the program itself, and the refusal of device memory.
func TestPinnedProgram(t *testing.T) {
	harness.Need(t, "gcc")
	d := harness.Device(t)
	dir := t.TempDir()
	for _, argv := range [][]string{
		{"-shared", "-fPIC", "-o", filepath.Join(dir, "libcuda.so.1"), "gpu/fakecuda.c"},
		{"-o", filepath.Join(dir, "pinned"), "gpu/pinned.c", "-libverbs", "-ldl"},
	} {
		argv = append([]string{"-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"}, argv...)
		if out, err := exec.Command("gcc", argv...).CombinedOutput(); err != nil {
			t.Fatalf("gcc %s: %v\n%s", strings.Join(argv, " "), err, out)
		}
	}
	out := d.Run(t, minute, "env", "LD_LIBRARY_PATH="+dir, filepath.Join(dir, "pinned"))
	if !strings.Contains(out, "passed: 0 wrong") {
		t.Errorf("pinned printed\n%s", out)
	}
}

// TestRefused registers memory that cannot be registered, with Debian 12's and the newest rdma-core. Neither passes a
// dma-buf to the daemon.
func TestRefused(t *testing.T) {
	d := harness.Device(t)
	program := harness.Compile(t, "refused")
	if out := d.Run(t, minute, program); !strings.Contains(out, "ok") {
		t.Error(out)
	}
	t.Run("newest", func(t *testing.T) {
		p := harness.NewestRoot(t).Launch(t, d, nil, program)
		if !p.Ended(minute) || p.Code() != 0 {
			p.End()
			t.Errorf("%s\n%s", p.Fate(), p.Output())
		}
	})
	// Programs that read the device tree find the device.
	for _, argv := range [][]string{{"ucx_info", "-d"}, {"fi_info", "-p", "verbs"}, {"ibv_devinfo", "-v"}, {"rdma", "link"}} {
		harness.Need(t, argv[0])
		if out := d.Run(t, minute, argv...); !strings.Contains(out, "rxe0") {
			t.Errorf("%s does not know the device:\n%s", strings.Join(argv, " "), out)
		}
	}
}

// TestNCCLCheckWithoutGPU runs tools/nccl-check where there is no GPU: it says so, and exits with 3.
func TestNCCLCheckWithoutGPU(t *testing.T) {
	harness.Need(t, "python3")
	check := exec.Command("python3", "../tools/nccl-check")
	check.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES=") // a machine with a GPU hides it
	out, err := check.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(string(out), "nothing was checked") {
		t.Errorf("%v\n%s", err, out)
	}
}
