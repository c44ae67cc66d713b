package launch

import "strings"

// Environment is env changed so that a program started with it sees the device of
// the daemon at p. What was preloaded before stays, behind us, and running vrdma
// inside vrdma does not preload twice. label, if not empty, is what trace asked for.
//
// librspreload.so has to stand before us: it turns sockets into RDMA calls that
// we then answer. So does libvrdma-sockets.so, which completes it.
func (p Place) Environment(env []string, label string) []string {
	set := map[string]string{
		"VRDMA_SOCKET": p.Socket,
		"SYSFS_PATH":   p.Sysfs(),
		"LD_PRELOAD":   "",
		"VRDMA_TRACE":  label,
	}
	var out []string
	var preload string
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		if _, ours := set[name]; !ours {
			out = append(out, entry)
		} else if name == "LD_PRELOAD" {
			preload = value
		}
	}
	set["LD_PRELOAD"] = joinPreload(preload, p.Library())
	for _, name := range []string{"VRDMA_SOCKET", "SYSFS_PATH", "LD_PRELOAD", "VRDMA_TRACE"} {
		if set[name] != "" {
			out = append(out, name+"="+set[name])
		}
	}
	return out
}

// joinPreload puts library into an LD_PRELOAD list: first, except that what is for
// rsockets goes before it.
func joinPreload(list, library string) string {
	var before, after []string
	for _, entry := range strings.FieldsFunc(list, func(r rune) bool { return r == ':' || r == ' ' || r == '\t' }) {
		switch base := entry[strings.LastIndexByte(entry, '/')+1:]; {
		case base == "libvrdma.so":
		case base == "libvrdma-sockets.so", strings.HasPrefix(base, "librspreload.so"):
			before = append(before, entry)
		default:
			after = append(after, entry)
		}
	}
	return strings.Join(append(append(before, library), after...), ":")
}
