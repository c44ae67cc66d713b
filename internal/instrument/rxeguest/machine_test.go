package rxeguest

import (
	"slices"
	"strings"
	"testing"
)

func TestCommand(t *testing.T) {
	m := Guest{
		Image: "/image", IP4: "10.0.0.1/24", IP6: "fd00::1/64", MTU: 9000, Network: "hubport,hubid=0", Line: "stdio", Console: "/console",
	}
	argv := m.Command()
	after := func(option string) string {
		i := slices.Index(argv, option)
		if i < 0 || i+1 == len(argv) {
			t.Fatalf("no %s in %q", option, argv)
		}
		return argv[i+1]
	}
	for option, want := range map[string]string{
		"-initrd": "/image/initramfs", "-smp": "1", "-m": "256", "-netdev": "hubport,id=n0,hubid=0", "-chardev": "stdio,id=line",
	} {
		if got := after(option); got != want {
			t.Errorf("%s %s, want %s", option, got, want)
		}
	}
	if boot := after("-append"); !strings.HasSuffix(boot, "guest.mtu=9000") {
		t.Errorf("the kernel is told %q: nothing was said of a device or a program", boot)
	}
	m.Device, m.Program, m.CPUs, m.Initramfs = "rxe_kernel", "/bin/true", 2, "/mine"
	argv = m.Command()
	if boot := after("-append"); !strings.HasSuffix(boot, " guest.device=rxe_kernel guest.program=/bin/true") {
		t.Errorf("the kernel is told %q", boot)
	}
	if after("-smp") != "2" || after("-initrd") != "/mine" {
		t.Errorf("got %q", argv)
	}
}
