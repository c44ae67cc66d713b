// Package examples holds the C programs of the lab, and makes the exercise from them: the same programs without the solution.
//
//	lab-c/kv_client.c ──▶ Exercise ──▶ kv_client.c with an empty one_sided(), README.md with the task
//
// cmd/vrdma calls it.
package examples

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed lab-c/*.c lab-c/*.h lab-c/Makefile
var programs embed.FS

// The lines between which a program has the solution.
const (
	solutionBegin = "\t/* Solution. */\n"
	solutionEnd   = "\t/* End of the solution. */\n"
)

// Unwritten stands for the solution. It builds, and says what is missing.
const Unwritten = `	/* Write this: post an RDMA READ of the number of the key, wait for its completion, and return the number. */
	(void)key;
	fprintf(stderr, "one_sided() is not written yet\n");
	exit(1);
`

const task = `# Exercise: read the table by RDMA READ

The server has a table of 32768 numbers. The client updates keys and reads them by messages. Both work. Your task is one_sided() in kv_client.c: it
reads a key without the server process.

You have

| what | where |
|---|---|
| the connection | id, whose queue pair is id->qp |
| registered memory for the result | reply.value, in the memory region reply_mr |
| the table's address and rkey at the server | table_address, table_rkey: the reply to KV_INFO had them |
| the position of a key | table_address + 4 * key |
| the call | man rdma_post_read, man rdma_get_send_comp |

1. Build and run it as it is: the client updates and queries, and ends with "one_sided() is not written yet".

       make
       vrdma run -- ./kv_server                      # in one terminal
       vrdma run -- ./kv_client -s 127.0.0.1 -n 1000 # in another

2. Post the READ, wait for its completion with check(), and return the number.
3. It is right when the client prints the line "1000 one-sided reads" and exits with 0: it compares every number. The server prints 2002 messages, of which
   the READs are none.

Questions: why does the server not need to post a receive? What does the client get if table_rkey is wrong, or the address is behind the table? Try it:
check() prints the status of the completion.
`

// Exercise returns the files of the exercise by name.
func Exercise() (map[string]string, error) {
	list, err := programs.ReadDir("lab-c")
	if err != nil {
		return nil, err
	}
	files := map[string]string{"README.md": task}
	for _, e := range list {
		text, err := programs.ReadFile("lab-c/" + e.Name())
		if err != nil {
			return nil, err
		}
		files[e.Name()] = string(text)
	}
	before, rest, found := strings.Cut(files["kv_client.c"], solutionBegin)
	_, after, found2 := strings.Cut(rest, solutionEnd)
	if !found || !found2 {
		return nil, fmt.Errorf("kv_client.c has no solution between %q and %q", solutionBegin, solutionEnd)
	}
	files["kv_client.c"] = before + Unwritten + after
	return files, nil
}

// Solution returns what the student writes in place of Unwritten.
func Solution() (string, error) {
	text, err := programs.ReadFile("lab-c/kv_client.c")
	if err != nil {
		return "", err
	}
	_, rest, _ := strings.Cut(string(text), solutionBegin)
	solution, _, found := strings.Cut(rest, solutionEnd)
	if !found {
		return "", fmt.Errorf("kv_client.c has no solution")
	}
	return solution, nil
}
