package tenant

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// oneOf reads a word that has to be one of a few.
func oneOf[T ~string](into *T, text []byte, words ...T) error {
	if !slices.Contains(words, T(text)) {
		all := make([]string, len(words))
		for i, w := range words {
			all[i] = string(w)
		}
		return fmt.Errorf("%q is not allowed here: choose one of %s", text, strings.Join(all, ", "))
	}
	*into = T(text)
	return nil
}

func (k *Kind) UnmarshalText(t []byte) error {
	return oneOf(k, t, KindTenant, KindNetwork, KindNIC, KindPolicy, KindHost, KindFault)
}
func (w *Way) UnmarshalText(t []byte) error     { return oneOf(w, t, WayVXLAN, WayHost, WayNamespace) }
func (v *Verdict) UnmarshalText(t []byte) error { return oneOf(v, t, Allow, Deny) }
func (c *Class) UnmarshalText(t []byte) error   { return oneOf(c, t, ClassBulk, ClassLatency) }
func (q *QPType) UnmarshalText(t []byte) error  { return oneOf(q, t, RC, UC, UD) }
func (o *Operation) UnmarshalText(t []byte) error {
	return oneOf(o, t, Send, Write, Read, Atomic)
}
func (h *HostType) UnmarshalText(t []byte) error  { return oneOf(h, t, HostVRDMA, HostLinux) }
func (d *Direction) UnmarshalText(t []byte) error { return oneOf(d, t, In, Out) }

// ParseKind reads a kind as the command line has it: nic, NICs, policies.
func ParseKind(text string) (Kind, error) {
	switch strings.ToLower(text) {
	case "tenant", "tenants":
		return KindTenant, nil
	case "network", "networks", "net", "nets":
		return KindNetwork, nil
	case "nic", "nics":
		return KindNIC, nil
	case "policy", "policies":
		return KindPolicy, nil
	case "host", "hosts":
		return KindHost, nil
	case "fault", "faults":
		return KindFault, nil
	}
	return "", fmt.Errorf("%q is not a kind of object: choose tenant, network, nic, policy, host or fault", text)
}

// serviceManual is how a file spells a service without rdma_cm.
const serviceManual = "manual"

// String is "manual", "tcp" or "tcp:7471,18000-18999".
func (s Service) String() string {
	if s.Manual {
		return serviceManual
	}
	var b strings.Builder
	b.WriteString(s.Space)
	for i, r := range s.Ports {
		b.WriteByte(":,"[min(i, 1)])
		b.WriteString(r.String())
	}
	return b.String()
}

// ParseService reads what String writes.
func ParseService(text string) (Service, error) {
	if text == serviceManual {
		return Service{Manual: true}, nil
	}
	space, ports, some := strings.Cut(text, ":")
	s := Service{Space: space}
	if some {
		for port := range strings.SplitSeq(ports, ",") {
			var r PortRange
			if err := r.UnmarshalText([]byte(port)); err != nil {
				return Service{}, err
			}
			s.Ports = append(s.Ports, r)
		}
	}
	if wrong := s.wrong(); wrong != "" {
		return Service{}, fmt.Errorf("%q: %s", text, wrong)
	}
	return s, nil
}

// wrong says what is wrong with a service; empty if nothing is.
func (s Service) wrong() string {
	if s.Manual {
		return ""
	}
	last := uint64(65535)
	switch s.Space {
	case "tcp", "udp":
	case "ib":
		last = 1<<64 - 1
	default:
		return fmt.Sprintf("the port space is %q: write manual, or a space of tcp, udp or ib", s.Space)
	}
	for _, r := range s.Ports {
		if r.First > r.Last || r.First == 0 || r.Last > last {
			return fmt.Sprintf("%s is not a range of ports of %s: they are 1 to %d, the smaller first", r, s.Space, last)
		}
	}
	return ""
}

// serviceFields are those of Service without its methods.
type serviceFields Service

func (s Service) MarshalJSON() ([]byte, error) {
	if s.Manual {
		return json.Marshal(serviceManual)
	}
	return json.Marshal(serviceFields(s))
}

func (s *Service) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] == '"' {
		*s = Service{Manual: true}
		return notManual(strings.Trim(string(text), `"`))
	}
	return json.Unmarshal(text, (*serviceFields)(s))
}

func notManual(word string) error {
	if word != serviceManual {
		return fmt.Errorf("%q is not a service: write manual, or {space: tcp, ports: [7471]}", word)
	}
	return nil
}

// String is "7471" or "18000-18999".
func (r PortRange) String() string {
	if r.First == r.Last {
		return strconv.FormatUint(r.First, 10)
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// UnmarshalText reads 7471, 18000-18999, and service ids like 0x1000-0x10ff.
func (r *PortRange) UnmarshalText(text []byte) error {
	first, last, isRange := strings.Cut(string(text), "-")
	if !isRange {
		last = first
	}
	f, err := strconv.ParseUint(first, 0, 64)
	l, err2 := strconv.ParseUint(last, 0, 64)
	if err != nil || err2 != nil {
		return fmt.Errorf("%q is not a port: write 7471, or a range like \"18000-18999\"", text)
	}
	*r = PortRange{f, l}
	return nil
}

// MarshalJSON returns a number for a single port. A range or a 64-bit service ID becomes a string, because many JSON
// parsers cannot represent 64-bit numbers.
func (r PortRange) MarshalJSON() ([]byte, error) {
	if r.First == r.Last && r.First <= 65535 {
		return []byte(r.String()), nil
	}
	return json.Marshal(r.String())
}

func (r *PortRange) UnmarshalJSON(text []byte) error {
	return r.UnmarshalText([]byte(strings.Trim(string(text), `"`)))
}
