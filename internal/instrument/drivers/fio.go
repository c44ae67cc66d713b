package drivers

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// ParseFio reads the result of one job from fio --output-format=json. fio exits with 0 even if its engine never connected, so an error
// or zero bytes is a failure here.
func ParseFio(output string) (ToolResult, error) {
	var result struct {
		Jobs []struct {
			Error int `json:"error"`
			Write struct {
				Bytes   float64 `json:"io_bytes"`
				Rate    float64 `json:"bw_bytes"`
				IOPS    float64 `json:"iops"`
				Runtime float64 `json:"runtime"`
				Total   int64   `json:"total_ios"`
			} `json:"write"`
		} `json:"jobs"`
	}
	if err := json.Unmarshal([]byte(output), &result); err != nil {
		return ToolResult{}, fmt.Errorf("fio printed no JSON: %w:\n%s", err, testbed.LastLines(output, 5))
	}
	if len(result.Jobs) != 1 || result.Jobs[0].Error != 0 {
		return ToolResult{}, fmt.Errorf("fio's job failed:\n%s", testbed.LastLines(output, 5))
	}
	w := result.Jobs[0].Write
	if w.Bytes <= 0 || w.Rate <= 0 {
		return ToolResult{}, errors.New("fio wrote no byte")
	}
	return ToolResult{Bytes: w.Bytes, Samples: w.Total, Values: map[string]float64{experiment.Bandwidth: w.Rate, experiment.Rate: w.IOPS}}, nil
}

// fioDriver writes to the other side's memory with fio's rdma engine.
var fioDriver = Driver{
	Commands: func(j *Job) (server, client []string) {
		const most = 1 << 30 // in a second; fio's engine is limited by bytes, not by time
		blocks := max(100, min(20000, most/int64(j.Cell.Size))) * int64(max(j.Seconds, 1))
		common := []string{"fio", "--ioengine=rdma", "--port=" + j.portText(), "--bs=" + j.sizeText(), "--size=" + strconv.FormatInt(blocks*int64(j.Cell.Size), 10), "--iodepth=16"}
		server = append(common[:len(common):len(common)], "--name=receiver", "--rw=read")
		return server, append(common[:len(common):len(common)], "--name=sender", "--rw=write", "--verb=write", "--hostname="+j.ServerIP(), "--output-format=json")
	},
	Parse:    func(_ *Job, output, _ string) (ToolResult, error) { return ParseFio(output) },
	Launcher: cmtimeDriver.Launcher,
}
