package fault

import (
	"fmt"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/docs"
)

// TestReference: docs/reference/faults.md has every action and every key.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Faults

Generated from package fault by ` + "`make docs`" + `: do not edit. [faults.md](../how-to/faults.md) shows how to test programs with them.

A rule (SPEC) is an action and keys, separated by commas: ` + "`drop,probability=1%,op=write`" + `. ` + "`vrdma run --fault SPEC`" + ` makes one program fail,
` + "`vrdma fault add SPEC`" + ` and the object [Fault](objects.md#fault) make NICs fail. ` + "`VRDMA_FAULT`" + ` has the rules of a program, separated by blanks.

## Actions

| action | effect | keys of its own |
|---|---|---|
`)
	for a := Drop; a < NumActions; a++ {
		var own []string
		for _, f := range fields {
			if f.actors&(hasTime|hasJitter|hasRate) != 0 && f.actors&a.Traits() != 0 {
				own = append(own, "`"+f.name+"`")
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", a, actions[a].help, strings.Join(own, ", "))
	}
	b.WriteString(`
## Keys

Every key that is given must match. Packets and messages are counted for each queue pair and direction, retransmissions included.

| key | value | meaning | actions |
|---|---|---|---|
`)
	for _, f := range fields {
		var of []string
		for a := Drop; a < NumActions; a++ {
			if f.actors&a.Traits() != 0 {
				of = append(of, "`"+a.String()+"`")
			}
		}
		who := strings.Join(of, ", ")
		switch {
		case f.actors == 0:
			who = "all"
		case f.actors&isPacket != 0:
			who = "those on packets"
			if f.actors&isConnect != 0 {
				who += " and connections"
			}
			if f.actors&isCompletion != 0 {
				who += " and completions"
			}
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s |\n", f.name, strings.ReplaceAll(f.value, "|", "\\|"), f.help, who)
	}
	b.WriteString(`
## Rules together

Rules are asked in their order, those of the NIC before those of the program. The first that loses a packet or answers it ends the
search. Delays, duplicates and reordering of several rules add up.

` + "`device-fatal`, `port-down`, `gid-change` and `suspend`" + ` happen once. With ` + "`op`, `packet`, `message`, `every`, `probability`, `peer` or `qp`" + ` they happen at the
first packet that matches, else at the time ` + "`from`" + `. For them ` + "`for`" + ` is how long the port stays down,
or the NIC stands still. ` + "`suspend`" + ` is for NICs, not for ` + "`vrdma run --fault`" + `: programs on the same host that share the NIC stand still with it.

Acknowledgements are hit only with ` + "`op=ack`" + ` or ` + "`op=any`" + `: their number depends on the speed of the machine, so that a replay would differ.
`)
	docs.Check(t, "docs/reference/faults.md", b.String())
}
