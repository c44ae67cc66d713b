package container

import (
	"slices"
	"strings"
)

// An engine calls an OCI runtime with options, a command, its options and the container's name. runc and crun have the
// same options, as far as engines use them.

// valued are the options of runc and crun before the command that have a value.
var valued = []string{"--root", "--log", "--log-format", "--log-level", "--criu", "--rootless", "--cgroup-manager"}

// making are the commands that create a container.
var making = []string{"create", "run", "restore"}

// BundleOf returns the bundle of a runtime's command line that creates a container.
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

// OptionOf returns the value of an option; "" if it is missing.
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
