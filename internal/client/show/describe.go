package show

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// quotaText formats used/limit.
func quotaText(q *control.QuotaUse) string {
	number := func(n uint64) string {
		if q.Kind == "memory" || q.Kind == "rings" {
			return bytesText(n)
		}
		return strconv.FormatUint(n, 10)
	}
	if q.Limit == 0 {
		return number(q.Used) + " of no limit"
	}
	return fmt.Sprintf("%s of %s (%d %%)", number(q.Used), number(q.Limit), 100*q.Used/q.Limit)
}

// Description prints an object with its state, its users and its last events.
func Description(w io.Writer, r *control.Reply, now time.Time) error {
	if len(r.Items) != 1 {
		return fmt.Errorf("the daemon's answer has %d objects, want one", len(r.Items))
	}
	it := r.Items[0]
	o, err := tenant.Unmarshal(it.Object)
	if err != nil {
		return err
	}
	text, err := tenant.YAML(o)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%s\t%s\n", it.Key.Kind, it.Key.Path())
	fmt.Fprintf(t, "Labels\t%s\n", cmp.Or(labelText(o.Meta().Labels), "none"))
	if s := it.Status; s != nil {
		if it.Key.Kind == tenant.KindFault {
			fmt.Fprintf(t, "NICs\t%d\nHits\t%d\n", s.NICs, s.Hits)
		} else {
			fmt.Fprintf(t, "State\t%s, for %s\n", s.State, age(now, s.Since))
		}
		if s.Reason != "" {
			fmt.Fprintf(t, "Reason\t%s\n", Plain(s.Reason))
		}
		if s.Socket != "" {
			fmt.Fprintf(t, "Socket\t%s\n", s.Socket)
		}
	}
	if n, ok := o.(*tenant.Network); ok {
		fmt.Fprintf(t, "Trusts\t%s\n", trustText(&n.Spec, it.Forgeable))
		if note := trustNote(&n.Spec, it.Forgeable); note != "" {
			fmt.Fprintf(t, "\t%s\n", note)
		}
	}
	for i, q := range it.Quota {
		fmt.Fprintf(t, "%s\t%s\t%s\n", [2]string{"Quota", ""}[min(i, 1)], q.Kind, quotaText(&q))
	}
	if it.Key.Kind != tenant.KindPolicy && it.Key.Kind != tenant.KindFault && len(r.InUse) == 0 {
		fmt.Fprintf(t, "Used by\tnobody\n")
	}
	for i, by := range r.InUse {
		fmt.Fprintf(t, "%s\t%s\n", [2]string{"Used by", ""}[min(i, 1)], Plain(by))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if _, spec, found := bytes.Cut(text, []byte("\nspec:")); found {
		fmt.Fprintf(w, "Spec%s", spec)
	}
	if len(r.Events) == 0 {
		fmt.Fprintln(w, "Events  none")
		return nil
	}
	fmt.Fprintln(w, "Events")
	for i := range r.Events {
		fmt.Fprintln(w, " ", EventLine(&r.Events[i]))
	}
	return nil
}
