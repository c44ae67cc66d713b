package credentials

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestControlGroup(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"0::/system.slice/a.service\n", "/system.slice/a.service"},
		{"12:cpu:/\n1:name=systemd:/docker/0123\n0::/\n", "/docker/0123"},
		{"3:odd:/with:colon\n", "/with:colon"},
		{"", ""},
		{"nonsense\n", ""},
	} {
		if got := controlGroup([]byte(test.text)); got != test.want {
			t.Errorf("%q: %q, want %q", test.text, got, test.want)
		}
	}
}

func TestWithin(t *testing.T) {
	for _, test := range []struct {
		path, prefix string
		want         bool
	}{
		{"/kubepods/pod1/a", "/kubepods/pod1", true}, {"/kubepods/pod1", "/kubepods/pod1/", true},
		{"/kubepods/pod10", "/kubepods/pod1", false}, {"/kubepods", "/kubepods/pod1", false},
		{"/a", "/", true}, {"/a/b", "a", true},
	} {
		if got := Within(test.path, test.prefix); got != test.want {
			t.Errorf("%s within %s: %v, want %v", test.path, test.prefix, got, test.want)
		}
	}
}

// The kernel's view of this process, from the other end of a socket.
func TestPlaceOfPeer(t *testing.T) {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	far, err := net.DialUnix("unixpacket", nil, l.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	near, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	c, err := Of(near)
	if err != nil {
		t.Fatal(err)
	}
	if !c.InGroup(near, []int{os.Getegid()}) || c.InGroup(near, []int{54321}) {
		t.Errorf("groups: not that of gid %d alone", os.Getegid())
	}
	mine, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range peerGroups(near) {
		if !slices.Contains(mine, int(g)) {
			t.Errorf("the kernel says group %d, which we do not have", g)
		}
	}
	if group, err := c.ControlGroup(near); err != nil || !filepath.IsAbs(group) {
		t.Errorf("control group %q, %v", group, err)
	}
	got, err := c.NetworkNamespace(near)
	if err != nil {
		t.Fatal(err)
	}
	if want, err := NamespaceAt("/proc/self/ns/net"); err != nil || got != want {
		t.Errorf("network namespace %q, want our own, %q (%v)", got, want, err)
	}
	if _, err := NamespaceAt("/proc/self/status"); err == nil {
		t.Error("a plain file is a namespace")
	}
	if _, err := NamespaceAt("/nothing"); err == nil {
		t.Error("nothing is a namespace")
	}
}

func TestContainerOf(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for path, want := range map[string]string{
		"/machine.slice/libpod-" + id + ".scope":                                          "0123456789ab",
		"/user.slice/user-1000.slice/user@1000.service/libpod-" + id + ".scope/container": "0123456789ab",
		"/docker/" + id:                         "0123456789ab",
		"/system.slice/docker-" + id + ".scope": "0123456789ab",
		"/kubepods/besteffort/pod3c5d/" + id:    "0123456789ab",
		"/kubepods.slice/kubepods-pod3c5d.slice/cri-containerd-" + id + ".scope": "0123456789ab",
		"/kubepods-besteffort-pod3c5d.slice:cri-containerd:" + id:                "0123456789ab",
		"/lxc.payload.web/init.scope":                                            "web",
		"/":                                                                      "",
		"/user.slice/session-1.scope":                                            "",
		"/docker/" + id + "0":                                                    "",
		"/docker/" + strings.ToUpper(id):                                         "",
		"/lxc.payload.we\x1bb":                                                   "",
		"/system.slice/x" + id + ".service":                                      "",
		"/system.slice/lxc.payload.\x07\n.scope":                                 "",
	} {
		if got := containerOf(path); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}
