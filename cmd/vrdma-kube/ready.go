package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// readyTime is how long vrdma-kube ready waits for an answer.
const readyTime = 10 * time.Second

func readyCommand() *cobra.Command {
	var socket, url string
	c := &cobra.Command{
		Use:   "ready",
		Short: "succeed if the daemon of this container serves pods: a readiness probe",
		Long: `Succeeds if the daemon that serves the socket is this container's, and answers /readyz of its
metrics address with 200. Two daemons on one host share that address while one takes over from
the other, so an HTTP probe alone does not tell which of them answers.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := own(socket); err != nil {
				return fmt.Errorf("not ready: %w", err)
			}
			if url == "" {
				return nil
			}
			return fetchReady(c.Context(), os.ExpandEnv(url))
		},
	}
	c.Flags().StringVar(&socket, "socket", "/var/lib/vrdma/vrdma.sock", "the daemon's `PATH`")
	c.Flags().StringVar(&url, "url", "", "the `URL` of the daemon's /readyz, in which ${NAME} is an environment variable: the kubelet does not replace $(POD_IP) in probes (default: do not ask)")
	return c
}

// fetchReady asks /readyz.
func fetchReady(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{}} // not through a proxy of the environment
	answer, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("not ready: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10)) // a part of the reason is enough
		return fmt.Errorf("not ready: %s: %s", answer.Status, strings.TrimSpace(string(text)))
	}
	return nil
}
