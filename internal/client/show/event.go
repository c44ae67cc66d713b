package show

import (
	"fmt"
	"strings"
	"time"

	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// EventLine formats an event for people, without control characters from clients.
func EventLine(e *events.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %-12s", e.Time.Local().Format(time.DateTime), e.Verb)
	if e.Object != (tenant.Key{}) {
		fmt.Fprintf(&b, " %v", e.Object)
	}
	if e.Peer != "" {
		fmt.Fprintf(&b, " (peer %s)", Plain(e.Peer))
	}
	if e.By != (events.Actor{}) {
		fmt.Fprintf(&b, " by %s", actorText(&e.By))
	}
	if e.Reason != "" {
		fmt.Fprintf(&b, ": %s", Plain(e.Reason))
	}
	if e.Missed > 0 {
		fmt.Fprintf(&b, " (%d more before it)", e.Missed)
	}
	return b.String()
}

func actorText(a *events.Actor) string {
	var list []string
	if a.UID >= 0 {
		list = append(list, fmt.Sprintf("uid %d", a.UID))
	}
	if a.Pid > 0 {
		list = append(list, fmt.Sprintf("pid %d", a.Pid))
	}
	name := Plain(a.Program)
	if name == "" {
		name = "a program"
	}
	if len(list) == 0 {
		return name
	}
	return fmt.Sprintf("%s (%s)", name, strings.Join(list, ", "))
}
