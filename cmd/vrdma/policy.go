package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

func policyCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "policy",
		Short: "evaluate the declared policies",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return usage("say what: vrdma policy test FROM TO") },
	}
	c.AddCommand(policyTestCommand(o))
	return c
}

func policyTestCommand(o *options) *cobra.Command {
	var files objectFiles
	var service, qpType string
	var ops []string
	c := &cobra.Command{
		Use:   "test FROM TO",
		Short: "test whether one NIC may connect to another, and by which rule",
		Long: `Prints whether the daemon would allow a connection that the NIC FROM requests from the NIC TO,
and the rule. With -f the files count as applied; nothing is changed, and no daemon is needed.
The status is 0 if the connection is allowed with all requested operations, 1 if not.

  vrdma policy test red/slow red/db
  vrdma policy test red/web red/db --service tcp:7471 --op read -f rules.yaml`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			q, err := policyQuestion(args[0], args[1], service, qpType)
			if err != nil {
				return usage("%w", err)
			}
			needs := make([]tenant.Operation, len(ops))
			for i, op := range ops {
				if err := needs[i].UnmarshalText([]byte(op)); err != nil {
					return usage("--op: %w", err)
				}
			}
			texts, err := files.read(c.InOrStdin())
			if err != nil {
				return err
			}
			place, err := o.place()
			if err != nil {
				return err
			}
			answers, err := testPolicy(place, q, texts)
			if err != nil {
				return err
			}
			return printAnswers(c.OutOrStdout(), &q, answers, needs)
		},
	}
	files.flag(c, "objects that count as applied")
	c.Flags().StringVar(&service, "service", "", "service that FROM connects to: tcp:PORT, udp:PORT, ib:PORT, or manual (queue pairs connected without rdma_cm); default: every service")
	c.Flags().StringVar(&qpType, "type", "rc", "type of the queue pairs: rc, uc or ud")
	c.Flags().StringSliceVar(&ops, "op", nil, "required operations: send, write, read, atomic (default: any of them)")
	return c
}

// policyQuestion parses the arguments.
func policyQuestion(from, to, service, qpType string) (q control.PolicyQuestion, err error) {
	q.From, q.To, q.Service = from, to, service
	for _, name := range []string{from, to} {
		if strings.Count(name, "/") != 1 {
			return q, fmt.Errorf("%s is not a NIC: write TENANT/NAME", name)
		}
	}
	if err := q.Type.UnmarshalText([]byte(qpType)); err != nil {
		return q, fmt.Errorf("--type: %w", err)
	}
	if service == "" {
		return q, nil
	}
	s, err := tenant.ParseService(service)
	switch {
	case err != nil:
		return q, fmt.Errorf("--service: %w", err)
	case !s.Manual && (len(s.Ports) != 1 || s.Ports[0].First != s.Ports[0].Last):
		return q, fmt.Errorf("--service %s: ask for one port, like tcp:7471, or leave it out for all", service)
	}
	return q, nil
}

// testPolicy asks the daemon. Without a daemon it decides here, from the files alone.
func testPolicy(place launch.Place, q control.PolicyQuestion, files []control.File) ([]control.PolicyAnswer, error) {
	answers, err := control.TestPolicy(place.Socket, q, files)
	if err == nil {
		return answers, nil
	}
	if !absent(err) || len(files) == 0 {
		return nil, objectsError(place, err)
	}
	objects, err := control.Parse(files)
	if err != nil {
		return nil, inFiles(err)
	}
	w, _, err := (&tenant.World{}).Next(tenant.Change{Put: objects}, rand.New(rand.NewPCG(1, 1)))
	if err != nil {
		return nil, inFiles(err)
	}
	return control.Judge(w, q)
}

// inFiles joins all errors in files.
func inFiles(err error) error {
	var list tenant.Errors
	if !errors.As(err, &list) {
		return err
	}
	var lines []string
	for _, e := range list {
		lines = append(lines, e.Error())
	}
	return problems(lines)
}

// enough reports whether an answer allows all required operations, and at least one.
func enough(a *control.PolicyAnswer, ops []tenant.Operation) bool {
	have := strings.Split(a.Operations, ", ")
	return a.Allowed && !slices.ContainsFunc(ops, func(op tenant.Operation) bool { return !slices.Contains(have, string(op)) })
}

// printAnswers prints one line for services with the same answer, and for a single service the
// decision of each side. A denial also sets the exit status.
func printAnswers(w io.Writer, q *control.PolicyQuestion, list []control.PolicyAnswer, ops []tenant.Operation) error {
	denied, alike, same := false, true, true
	for i := range list {
		denied = denied || !enough(&list[i], ops)
		alike = alike && list[i].Rule == list[0].Rule
		same = same && list[i].Operations == list[0].Operations
	}
	verdict := tenant.Allow
	if denied {
		verdict = tenant.Deny
	}
	fmt.Fprintf(w, "%s -> %s: %s\n", q.From, q.To, verdict)
	switch {
	case len(list) > 1 && same && !denied:
		fmt.Fprintf(w, "  every service: %s\n", list[0].Operations)
	case len(list) > 0 && alike:
		fmt.Fprintf(w, "  %s\n", list[0].Rule)
		for _, step := range list[0].Steps {
			fmt.Fprintf(w, "  - %s\n", step)
		}
	default:
		for _, a := range list {
			fmt.Fprintf(w, "  %s: %s\n", a.Service, a.Rule)
		}
	}
	if denied {
		return &exit.Error{Status: exit.StatusFailed}
	}
	return nil
}
