package podmanhosts

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"vrdma.dev/vrdma/internal/exit"
)

// tools are what the hosts are made of.
type tools struct {
	etcd  string
	roots string // directories for an overlay, the first on top
	// plugin is vrdma's plugin of CRIU.
	plugin string
}

// programs that the root of a host has.
var programs = []string{"podman", "crun", "criu", "nft", "tar"}

// find finds the tools, or says what to install.
func find() (x tools, err error) {
	if os.Geteuid() != 0 {
		return x, exit.Lacks("moving containers needs root: CRIU reads the memory of other processes")
	}
	if x.etcd, err = FindEtcd(); err != nil {
		return x, err
	}
	self, err := os.Executable()
	if err != nil {
		return x, err
	}
	if x.plugin, err = findPlugin(filepath.Dir(self)); err != nil {
		return x, err
	}
	x.roots, err = findRoots()
	return x, err
}

// findRoots returns this machine's root or that in the cache.
func findRoots() (string, error) {
	lack := missing(exec.LookPath)
	if len(lack) == 0 {
		out, _ := exec.Command("criu", "--version").Output() // no output is no version
		if major(string(out)) >= 4 {
			return "/", nil
		}
		lack = []string{"CRIU 4 (this machine has " + strings.TrimSpace(strings.ReplaceAll(string(out), "\n", " ")) + ")"}
	}
	cached := cachedRoots()
	if cached == nil {
		return "", exit.Lacks("%s not found: install podman, crun and CRIU 4 (Debian 14: apt install podman crun criu nftables). On an older Debian unpack them, without an installation: "+
			"tools/container-image ~/.cache/vrdma/image-host host && tools/criu-image ~/.cache/vrdma/criu", strings.Join(lack, ", "))
	}
	return strings.Join(cached, ":"), nil
}

// missing returns the programs that look does not find.
func missing(look func(string) (string, error)) (names []string) {
	for _, name := range programs {
		if _, err := look(name); err != nil {
			names = append(names, name)
		}
	}
	return names
}

// version is what criu --version prints.
var version = regexp.MustCompile(`Version: ([0-9]+)`)

// major returns CRIU's major version; 0: it is unknown.
func major(text string) int {
	found := version.FindStringSubmatch(text)
	if found == nil {
		return 0
	}
	n, _ := strconv.Atoi(found[1]) // it has digits only
	return n
}

// cachedRoots are the directories in the user's cache; nil: something is not there.
func cachedRoots() (dirs []string) {
	place, err := os.UserCacheDir()
	if err != nil {
		return nil
	}
	for _, name := range []string{"criu", "image-host"} {
		dirs = append(dirs, filepath.Join(place, "vrdma", name, "root"))
	}
	look := func(name string) (string, error) {
		for _, dir := range dirs {
			for _, in := range []string{"usr/bin", "usr/sbin"} {
				if path := filepath.Join(dir, in, name); exists(path) {
					return path, nil
				}
			}
		}
		return "", os.ErrNotExist
	}
	if len(missing(look)) > 0 {
		return nil
	}
	return dirs
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// findPlugin finds the plugin beside the program, as make build leaves it, or where the package installs it.
func findPlugin(bin string) (string, error) {
	places := []string{filepath.Join(bin, "vrdma_criu_plugin.so"), filepath.Join(bin, "../lib/criu/vrdma_plugin.so")}
	for _, path := range places {
		if exists(path) {
			return path, nil
		}
	}
	return "", exit.Lacks("vrdma's plugin of CRIU not found: neither %s nor %s", places[0], places[1])
}

// FindEtcd finds etcd in PATH, or in the user's cache, where make deps-test unpacks Debian's.
func FindEtcd() (string, error) {
	if path, err := exec.LookPath("etcd"); err == nil {
		return path, nil
	}
	if dir, err := os.UserCacheDir(); err == nil {
		if path, err := exec.LookPath(filepath.Join(dir, "vrdma/unpacked/etcd-server/usr/bin/etcd")); err == nil {
			return path, nil
		}
	}
	return "", exit.Lacks("etcd not found: the hosts share declared objects through it. Install it (Debian: apt install etcd-server), or put the binary of its release into PATH")
}
