package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"vrdma/internal/control"
	"vrdma/internal/ib"
	"vrdma/internal/launch"
	"vrdma/internal/policy"
	"vrdma/internal/tenant"
)

func policyCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "policy",
		Short: "ask what the declared policies say",
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
		Short: "say whether one NIC may connect to another, and which rule decides",
		Long: `Says what the daemon would do if the NIC FROM asked the NIC TO for a connection, and by
which rule. With -f the files are taken as applied; nothing is changed. Without a daemon
the files are all there is. The status is 0 if the connection, with all the operations
that were asked for, is allowed, and 1 if not.

  vrdma policy test red/slow red/db
  vrdma policy test red/web red/db --service tcp:7471 --op read -f rules.yaml`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			q, err := policyQuestion(args[0], args[1], service, qpType, ops)
			if err != nil {
				return usage("%w", err)
			}
			texts, err := files.read(c.InOrStdin())
			if err != nil {
				return err
			}
			place, err := o.place()
			if err != nil {
				return err
			}
			verdict, err := testPolicy(place, q, texts)
			if err != nil {
				return err
			}
			return printVerdict(c.OutOrStdout(), &q, verdict)
		},
	}
	files.flag(c, "taken as applied")
	c.Flags().StringVar(&service, "service", "", "what FROM connects to: tcp:PORT, udp:PORT, ib:PORT, or manual (queue pairs brought up without rdma_cm); default: every service")
	c.Flags().StringVar(&qpType, "type", "rc", "type of the queue pairs: rc, uc or ud")
	c.Flags().StringSliceVar(&ops, "op", nil, "operations that it needs: send, write, read, atomic (default: any of them)")
	return c
}

// policyQuestion puts the question together.
func policyQuestion(from, to, service, qpType string, ops []string) (q control.PolicyQuestion, err error) {
	q.From, q.To = from, to
	for _, name := range []string{from, to} {
		if strings.Count(name, "/") != 1 {
			return q, fmt.Errorf("%s is not a NIC: write TENANT/NAME", name)
		}
	}
	if err := q.Type.UnmarshalText([]byte(qpType)); err != nil {
		return q, fmt.Errorf("--type: %w", err)
	}
	for _, text := range ops {
		var op tenant.Operation
		if err := op.UnmarshalText([]byte(text)); err != nil {
			return q, fmt.Errorf("--op: %w", err)
		}
		q.Ops = append(q.Ops, op)
	}
	if service == "" {
		return q, nil
	}
	s, err := tenant.ParseService(service)
	switch {
	case err != nil:
		return q, fmt.Errorf("--service: %w", err)
	case s.Manual:
		q.Manual = true
		return q, nil
	case len(s.Ports) != 1 || s.Ports[0].First != s.Ports[0].Last:
		return q, fmt.Errorf("--service %s: ask for one port, like tcp:7471", service)
	}
	q.Space, q.Port = s.Space, s.Ports[0].First
	return q, nil
}

// testPolicy asks the daemon, or decides here if there is none and files say what would be.
func testPolicy(place launch.Place, q control.PolicyQuestion, files []control.File) (*control.PolicyVerdict, error) {
	verdict, err := control.TestPolicy(place.Socket, q, files)
	if err == nil {
		return verdict, nil
	}
	if !absent(err) || len(files) == 0 {
		return nil, objectsError(place, err)
	}
	objects, err := parseFiles(files)
	if err != nil {
		return nil, inFiles(err)
	}
	w, _, err := (&tenant.World{}).Next(tenant.Change{Put: objects}, rand.New(rand.NewPCG(1, 1)))
	if err != nil {
		return nil, inFiles(err)
	}
	return decidePolicy(w, q)
}

// inFiles is everything that is wrong with files.
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

// decidePolicy answers a question about a world with the rules that the daemon uses.
func decidePolicy(w *tenant.World, q control.PolicyQuestion) (*control.PolicyVerdict, error) {
	nic := func(path string) tenant.Key {
		of, name, _ := strings.Cut(path, "/")
		return tenant.Key{Kind: tenant.KindNIC, Tenant: of, Name: name}
	}
	service := "manual"
	if q.Space != "" {
		service = fmt.Sprintf("%s:%d", q.Space, q.Port)
	}
	contact, err := policy.ContactOf(cmp.Or(string(q.Type), "rc"), service)
	if err != nil {
		return nil, err
	}
	rules := policy.Compile(w, nil)
	if !q.Manual && q.Space == "" {
		list, err := rules.Survey(nic(q.From), nic(q.To), contact.Type)
		if err != nil {
			return nil, err
		}
		return surveyVerdict(list, q.Ops), nil
	}
	answer, err := rules.Explain(nic(q.From), nic(q.To), contact)
	if err != nil {
		return nil, err
	}
	v := &control.PolicyVerdict{Verdict: verdictOf(answer, q.Ops), Rule: answer.String()}
	if answer.Operations != ib.AllOperations && answer.Allowed() {
		v.Ops = strings.Split(policy.Names(answer.Operations), ", ")
	}
	for i := range answer.Steps {
		s := &answer.Steps[i]
		v.Details = append(v.Details, fmt.Sprintf("%s (%s)", s, policy.Names(s.Operations)))
	}
	return v, nil
}

// verdictOf is allow if there is a connection with all of the operations.
func verdictOf(a *policy.Answer, ops []tenant.Operation) tenant.Verdict {
	have := strings.Split(policy.Names(a.Operations), ", ")
	lacks := func(op tenant.Operation) bool { return !slices.Contains(have, string(op)) }
	if !a.Allowed() || slices.ContainsFunc(ops, lacks) {
		return tenant.Deny
	}
	return tenant.Allow
}

// surveyVerdict is the answer for every service: allow if all are.
func surveyVerdict(list []policy.Stretch, ops []tenant.Operation) *control.PolicyVerdict {
	v := &control.PolicyVerdict{Verdict: tenant.Allow, Rule: list[0].Answer.String()}
	for i := range list {
		s := &list[i]
		if verdictOf(s.Answer, ops) == tenant.Deny {
			v.Verdict = tenant.Deny
		}
		if s.Answer.String() != v.Rule {
			v.Rule = "it depends on the service"
		}
		v.Details = append(v.Details, fmt.Sprintf("%s: %s", s, s.Answer))
	}
	if v.Rule != "it depends on the service" {
		v.Details = nil
	}
	return v
}

// printVerdict prints the answer; that something is denied is in the exit status, too.
func printVerdict(w io.Writer, q *control.PolicyQuestion, v *control.PolicyVerdict) error {
	fmt.Fprintf(w, "%s -> %s: %s\n", q.From, q.To, v.Verdict)
	fmt.Fprintf(w, "  %s\n", v.Rule)
	for _, line := range v.Details {
		fmt.Fprintf(w, "  - %s\n", line)
	}
	if v.Verdict == tenant.Deny {
		return &exitError{status: exitFailed}
	}
	return nil
}
