package preflight

import (
	"debug/elf"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// rootFS creates a root file system: files by their path; contents that begin with "->" are links.
func rootFS(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		at := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		if target, link := strings.CutPrefix(content, "->"); err == nil && link {
			err = os.Symlink(target, at)
		} else if err == nil {
			err = os.WriteFile(at, []byte(content), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestRoot(t *testing.T) {
	here, other := machines[runtime.GOARCH], elf.EM_AARCH64
	if here == other {
		other = elf.EM_X86_64
	}
	glibc := string(image(elf.ELFCLASS64, here, "/lib64/ld-linux-x86-64.so.2"))
	good := map[string]string{
		"usr/bin/dash": glibc, "usr/bin/sh": "->dash", "bin": "->/usr/bin",
		"usr/lib/x/libibverbs/librxe-rdmav34.so": "", "etc/libibverbs.d/rxe.driver": "",
	}
	for _, test := range []struct {
		name     string
		change   map[string]string // "": the file is not there
		programs []string
		want     string // "": nothing is found
	}{
		{"good", nil, nil, ""},
		{"by name", nil, []string{"dash", "/bin/sh"}, ""},
		{"a script", map[string]string{"usr/bin/run": "#!/bin/sh\n"}, []string{"run"}, ""},
		{"musl", map[string]string{"usr/bin/dash": string(image(elf.ELFCLASS64, here, "/lib/ld-musl-x86_64.so.1"))}, nil, "musl"},
		{"static", map[string]string{"usr/bin/server": string(image(elf.ELFCLASS64, here, ""))}, []string{"sh", "server"}, "/usr/bin/server is statically linked"},
		{"another architecture", map[string]string{"usr/bin/dash": string(image(elf.ELFCLASS64, other, "/lib/ld.so"))}, nil, "is built for"},
		{"no provider", map[string]string{"usr/lib/x/libibverbs/librxe-rdmav34.so": ""}, nil, "rxe provider is not installed"},
		{"not told of the provider", map[string]string{"etc/libibverbs.d/rxe.driver": ""}, nil, "rxe.driver"},
		{"no program", nil, []string{"perftest"}, "no program perftest"},
		{"a preload of its own", map[string]string{"etc/ld.so.preload": "/lib/x.so\n"}, nil, "/lib/x.so"},
		{"ours", map[string]string{"etc/ld.so.preload": "/run/vrdma/vrdma.sock.d/libvrdma.so\n"}, nil, ""},
		{"an empty one", map[string]string{"etc/ld.so.preload": "\n"}, nil, ""},
		{"a link that leads outside", map[string]string{"usr/bin/dash": "->/../../../../../../bin/sh"}, nil, "no program /bin/sh"},
	} {
		t.Run(test.name, func(t *testing.T) {
			files := make(map[string]string)
			for name, content := range good {
				files[name] = content
			}
			for name, content := range test.change {
				if _, there := good[name]; there && content == "" {
					delete(files, name)
				} else {
					files[name] = content
				}
			}
			found, err := Root(rootFS(t, files), test.programs...)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case test.want == "" && len(found) > 0, test.want != "" && (len(found) != 1 || !strings.Contains(found[0].String(), test.want)):
				t.Errorf("found %v, want %q", found, test.want)
			}
		})
	}
	if _, err := Root(filepath.Join(t.TempDir(), "nothing")); err == nil {
		t.Error("a directory that is not there is fine")
	}
	// A pipe in place of a program does not block.
	root := rootFS(t, good)
	if err := syscall.Mkfifo(filepath.Join(root, "usr/bin/pipe"), 0o755); err != nil {
		t.Fatal(err)
	}
	if found, err := Root(root, "pipe"); err != nil || len(found) != 1 {
		t.Errorf("a pipe: %v, %v", found, err)
	}
}

// When a container starts, its first program is checked, or the shell. A missing program is not reported.
func TestStart(t *testing.T) {
	here, other := machines[runtime.GOARCH], elf.EM_AARCH64
	if here == other {
		other = elf.EM_X86_64
	}
	glibc := string(image(elf.ELFCLASS64, here, "/lib64/ld-linux-x86-64.so.2"))
	root := rootFS(t, map[string]string{
		"usr/bin/dash": glibc, "usr/bin/sh": "->dash", "bin": "->/usr/bin", "usr/bin/script": "#!/bin/sh\n",
		"usr/bin/musl":   string(image(elf.ELFCLASS64, here, "/lib/ld-musl-x86_64.so.1")),
		"usr/bin/static": string(image(elf.ELFCLASS64, here, "")), "usr/bin/other": string(image(elf.ELFCLASS64, other, "/lib/ld.so")),
		"usr/lib/x/libibverbs/librxe-rdmav34.so": "", "etc/libibverbs.d/rxe.driver": "", "etc/ld.so.preload": "/lib/own.so",
	})
	for program, want := range map[string]string{
		"": "", "dash": "", "/bin/sh": "", "script": "", "nothing": "", "musl": "musl", "/usr/bin/static": "statically linked", "other": "is built for",
	} {
		found, err := Start(root, program)
		if err != nil || want == "" && len(found) > 0 || want != "" && (len(found) != 1 || !strings.Contains(found[0].String(), want)) {
			t.Errorf("%q: %v, %v, want %q", program, found, err, want)
		}
	}
	if found, err := Start(t.TempDir(), "x"); err != nil || len(found) != 1 || !strings.Contains(found[0].String(), "rxe provider") {
		t.Errorf("an empty image: %v, %v", found, err)
	}
	if _, err := Start("/nonexistent", "x"); err == nil {
		t.Error("a root that is not there")
	}
}
