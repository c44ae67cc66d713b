package policy

import (
	"net/netip"

	"vrdma.dev/vrdma/internal/ib"
)

// judge returns the operations that a connection of member m with member peer may use.
func (n *network) judge(m, peer int32, c ib.Contact) ib.Operations {
	a, b := &n.members[m], &n.members[peer]
	if a.types&b.types&typeBit(c.Type) == 0 {
		return 0
	}
	ops := a.ops & b.ops
	if m == peer {
		return ops
	}
	if n.stale(a) || n.stale(b) {
		return 0
	}
	if c.By != ib.Them {
		ops &= n.side(a, b, out, &c) & n.side(b, a, in, &c)
	}
	if c.By != ib.Us {
		ops &= n.side(b, a, out, &c) & n.side(a, b, in, &c)
	}
	return ops
}

// side is the decision of one end.
func (n *network) side(m, peer *member, d int, c *ib.Contact) ib.Operations {
	p := n.profiles[m.profile]
	if len(p.rules[d]) == 0 {
		return n.fallback
	}
	v := n.cell(p, d, peer.class).find(c)
	return n.weigh(p, d, v.allow[c.Type], v.deny[c.Type])
}

// weigh combines the matching rules to a decision.
func (n *network) weigh(p *profile, d int, allow, deny ib.Operations) ib.Operations {
	if p.closed[d] {
		return allow &^ deny
	}
	return n.fallback &^ deny
}

// stranger judges a connection with an address that no NIC has. Only rules about all peers and about prefixes match it,
// and there is no other end to decide.
func (n *network) stranger(m int32, peer ib.GID, c ib.Contact) ib.Operations {
	a := &n.members[m]
	if a.types&typeBit(c.Type) == 0 {
		return 0
	}
	if n.stale(a) {
		return 0
	}
	at, ops := peer.Addr(), a.ops
	if c.By != ib.Them {
		ops &= n.sideTo(a, at, out, &c)
	}
	if c.By != ib.Us {
		ops &= n.sideTo(a, at, in, &c)
	}
	return ops
}

// group judges a multicast group: membership is the direction in (ib.Them), sending is the direction out (ib.Us).
func (n *network) group(m int32, group ib.GID, by ib.Asker) ib.Operations {
	a := &n.members[m]
	if a.types&typeBit(ib.UD) == 0 {
		return 0
	}
	if n.stale(a) {
		return 0
	}
	c := ib.Contact{Type: ib.UD, By: ib.Nobody} // there is no service
	at, ops := group.Addr(), a.ops&ib.OpSend
	if by != ib.Them {
		ops &= n.sideTo(a, at, out, &c)
	}
	if by != ib.Us {
		ops &= n.sideTo(a, at, in, &c)
	}
	return ops
}

// sideTo is side for an address that no NIC has.
func (n *network) sideTo(m *member, peer netip.Addr, d int, c *ib.Contact) ib.Operations {
	p := n.profiles[m.profile]
	var allow, deny ib.Operations
	for _, r := range p.rules[d] {
		switch {
		case !r.matches(peer, c):
		case r.deny:
			deny |= r.ops
		default:
			allow |= r.ops
		}
	}
	return n.weigh(p, d, allow, deny)
}

// matches reports whether the rule applies to an address that no NIC has. In a network whose NICs have the addresses of
// their containers any NIC may have it. What is denied to one NIC by name or labels is denied there to every address,
// because allowing it would be the worse mistake.
func (r *rule) matches(peer netip.Addr, c *ib.Contact) bool {
	named := r.peer.NIC != "" || len(r.peer.Labels) > 0
	within := !r.peer.Prefix.IsValid() || r.peer.Prefix.Contains(peer)
	return within && (!named || r.deny && r.blind) &&
		r.types&typeBit(c.Type) != 0 && r.services.matches(c)
}
