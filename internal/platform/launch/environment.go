package launch

import "strings"

// Environment returns env with the variables that make a program see the device of the daemon at p. Other
// preloaded libraries stay, after libvrdma.so; vrdma inside vrdma does not preload twice. label, if not empty,
// is the label of vrdma trace.
//
// librspreload.so must come before libvrdma.so: it turns sockets into RDMA calls, which libvrdma.so
// answers. So must libvrdma-sockets.so, which completes it.
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

// joinPreload adds library to an LD_PRELOAD list: first, but after the libraries for rsockets.
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
