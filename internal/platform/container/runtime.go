package container

import (
	"slices"
	"strings"
)

// What engines say to an OCI runtime: options, a command, its options, the container's name. runc and crun have the same
// ones, as far as engines use them.

// valued are the options of runc and crun before the command that have a value.
var valued = []string{"--root", "--log", "--log-format", "--log-level", "--criu", "--rootless", "--cgroup-manager"}

// making are the commands that make a container.
var making = []string{"create", "run", "restore"}

// BundleOf is the bundle of which a runtime's command line makes a container.
func BundleOf(args []string) (dir string, makes bool) {
	for i := 0; i < len(args); i++ {
		switch {
		case slices.Contains(valued, args[i]):
			i++
		case strings.HasPrefix(args[i], "-"):
		case slices.Contains(making, args[i]):
			for _, name := range []string{"--bundle", "-b"} {
				if dir := OptionOf(args[i:], name); dir != "" {
					return dir, true
				}
			}
			return ".", true
		default:
			return "", false
		}
	}
	return "", false
}

// OptionOf is the value of an option; "" if it is not there.
func OptionOf(args []string, name string) string {
	for i, a := range args {
		if value, ok := strings.CutPrefix(a, name+"="); ok {
			return value
		}
		if a == name && i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}
