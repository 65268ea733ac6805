// A connector that counts (source) and notes what it is given (destination). It tells in a file what it is called for.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"conduit.test/connectors/host"
	"conduit.test/connectors/pb"
)

var notes sync.Mutex

// note appends a line to the file that the setting `notes` names.
func note(config map[string]string, format string, args ...any) {
	if config["notes"] == "" {
		return
	}
	notes.Lock()
	defer notes.Unlock()
	f, err := os.OpenFile(config["notes"], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	fmt.Fprintf(f, format+"\n", args...)
}

// shut returns whether it cannot be opened: while there is a file beside the notes that says so.
func shut(config map[string]string) bool {
	_, err := os.Stat(config["notes"] + ".shut")
	return err == nil
}

type source struct {
	pb.UnimplementedSourcePluginServer
	config map[string]string
	at     int
	last   string
	stop   chan struct{}
	done   chan struct{}
	once   sync.Once
}

func number(config map[string]string, name string, otherwise int) int {
	if n, err := strconv.Atoi(config[name]); err == nil {
		return n
	}
	return otherwise
}

func (s *source) Configure(_ context.Context, r *pb.Source_Configure_Request) (*pb.Source_Configure_Response, error) {
	s.config, s.stop, s.done = r.Config, make(chan struct{}), make(chan struct{})
	return &pb.Source_Configure_Response{}, nil
}

func (s *source) LifecycleOnCreated(_ context.Context, r *pb.Source_Lifecycle_OnCreated_Request) (*pb.Source_Lifecycle_OnCreated_Response, error) {
	note(s.config, "created")
	return &pb.Source_Lifecycle_OnCreated_Response{}, nil
}

func (s *source) LifecycleOnUpdated(_ context.Context, r *pb.Source_Lifecycle_OnUpdated_Request) (*pb.Source_Lifecycle_OnUpdated_Response, error) {
	note(s.config, "updated %s %s", r.ConfigBefore["count"], r.ConfigAfter["count"])
	return &pb.Source_Lifecycle_OnUpdated_Response{}, nil
}

func (s *source) LifecycleOnDeleted(_ context.Context, r *pb.Source_Lifecycle_OnDeleted_Request) (*pb.Source_Lifecycle_OnDeleted_Response, error) {
	note(s.config, "deleted")
	return &pb.Source_Lifecycle_OnDeleted_Response{}, nil
}

func (s *source) Open(_ context.Context, r *pb.Source_Open_Request) (*pb.Source_Open_Response, error) {
	note(s.config, "open %s", string(r.Position))
	if shut(s.config) {
		return nil, fmt.Errorf("it cannot be opened now")
	}
	if len(r.Position) > 0 {
		n, err := strconv.Atoi(string(r.Position))
		if err != nil {
			return nil, fmt.Errorf("the position %q is none of mine", r.Position)
		}
		s.at = n
	}
	return &pb.Source_Open_Response{}, nil
}

func (s *source) Run(stream pb.SourcePlugin_RunServer) error {
	fmt.Println("the counter runs")
	acks := make(chan error, 1)
	go func() {
		for {
			request, err := stream.Recv()
			if err == io.EOF {
				acks <- nil
				return
			} else if err != nil {
				acks <- err
				return
			}
			for _, position := range request.AckPositions {
				note(s.config, "ack %s", string(position))
			}
		}
	}()
	if err := s.send(stream); err != nil {
		return err
	}
	close(s.done)
	select {
	case <-s.stop:
		return <-acks
	case err := <-acks:
		return err
	}
}

func (s *source) send(stream pb.SourcePlugin_RunServer) error {
	batch, text := number(s.config, "batch", 1000), strings.Repeat("x", number(s.config, "size", 20))
	for {
		count := number(s.config, "count", 10)
		if file := s.config["upto"]; file != "" {
			content, _ := os.ReadFile(file)
			count, _ = strconv.Atoi(strings.TrimSpace(string(content)))
		}
		records := make([]*pb.Record, 0, batch)
		for len(records) < batch && s.at < count {
			s.at++
			s.last = strconv.Itoa(s.at)
			records = append(records, &pb.Record{
				Position:  []byte(s.last),
				Operation: pb.Operation_OPERATION_CREATE,
				Metadata:  map[string]string{"opencdc.collection": "numbers"},
				Key:       &pb.Data{Data: &pb.Data_RawData{RawData: []byte(s.last)}},
				Payload:   &pb.Change{After: &pb.Data{Data: &pb.Data_RawData{RawData: []byte(s.last + " " + text)}}},
			})
		}
		if len(records) > 0 {
			if err := stream.Send(&pb.Source_Run_Response{Records: records}); err != nil {
				return err
			}
		}
		select {
		case <-s.stop:
			return nil
		case <-time.After(map[bool]time.Duration{true: 0, false: 20 * time.Millisecond}[len(records) > 0]):
		}
	}
}

func (s *source) Stop(context.Context, *pb.Source_Stop_Request) (*pb.Source_Stop_Response, error) {
	s.once.Do(func() { close(s.stop) })
	<-s.done
	note(s.config, "stop %s", s.last)
	return &pb.Source_Stop_Response{LastPosition: []byte(s.last)}, nil
}

func (s *source) Teardown(context.Context, *pb.Source_Teardown_Request) (*pb.Source_Teardown_Response, error) {
	note(s.config, "teardown")
	return &pb.Source_Teardown_Response{}, nil
}

type destination struct {
	pb.UnimplementedDestinationPluginServer
	config map[string]string
	tried  map[string]int
}

func (d *destination) Configure(_ context.Context, r *pb.Destination_Configure_Request) (*pb.Destination_Configure_Response, error) {
	d.config, d.tried = r.Config, map[string]int{}
	return &pb.Destination_Configure_Response{}, nil
}

func (d *destination) LifecycleOnCreated(context.Context, *pb.Destination_Lifecycle_OnCreated_Request) (*pb.Destination_Lifecycle_OnCreated_Response, error) {
	note(d.config, "created")
	if _, err := os.Stat(d.config["notes"] + ".slow"); err == nil {
		time.Sleep(3 * time.Second)
	}
	return &pb.Destination_Lifecycle_OnCreated_Response{}, nil
}

func (d *destination) LifecycleOnUpdated(context.Context, *pb.Destination_Lifecycle_OnUpdated_Request) (*pb.Destination_Lifecycle_OnUpdated_Response, error) {
	note(d.config, "updated")
	return &pb.Destination_Lifecycle_OnUpdated_Response{}, nil
}

func (d *destination) LifecycleOnDeleted(context.Context, *pb.Destination_Lifecycle_OnDeleted_Request) (*pb.Destination_Lifecycle_OnDeleted_Response, error) {
	note(d.config, "deleted")
	return &pb.Destination_Lifecycle_OnDeleted_Response{}, nil
}

func (d *destination) Open(context.Context, *pb.Destination_Open_Request) (*pb.Destination_Open_Response, error) {
	note(d.config, "open")
	if shut(d.config) {
		return nil, fmt.Errorf("it cannot be opened now")
	}
	return &pb.Destination_Open_Response{}, nil
}

// Run writes as the SDK does: a record that is refused ends the batch, and all that follow in it get its error.
func (d *destination) Run(stream pb.DestinationPlugin_RunServer) error {
	var out *os.File
	if path := d.config["path"]; path != "" {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		out = f
	}
	for first := true; ; first = false {
		request, err := stream.Recv()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if !first {
			d.wait()
		}
		note(d.config, "batch %d", len(request.Records))
		acks, refused := make([]*pb.Destination_Run_Response_Ack, len(request.Records)), ""
		var text strings.Builder
		for n, record := range request.Records {
			if refused == "" {
				refused = d.refuses(string(record.Payload.After.GetRawData()))
			}
			if refused == "" && out != nil {
				text.Write(record.Payload.After.GetRawData())
				text.WriteByte('\n')
			}
			acks[n] = &pb.Destination_Run_Response_Ack{Position: record.Position, Error: refused}
		}
		if out != nil {
			if _, err := out.WriteString(text.String()); err != nil {
				return err
			}
		}
		if err := stream.Send(&pb.Destination_Run_Response{Acks: acks}); err != nil {
			return err
		}
	}
}

// wait stands still, before the second message, until there is the file that the setting `wait` names.
func (d *destination) wait() {
	if file := d.config["wait"]; file != "" {
		note(d.config, "waits %d", os.Getpid())
		for _, err := os.Stat(file); err != nil; _, err = os.Stat(file) {
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// refuses says why a record is refused: always if it holds the text `refuse`, `times` times if it holds `fail`.
func (d *destination) refuses(text string) string {
	if word := d.config["refuse"]; word != "" && strings.Contains(text, word) {
		return "it holds " + word
	}
	if word := d.config["fail"]; word != "" && strings.Contains(text, word) {
		d.tried[text]++
		if d.tried[text] <= number(d.config, "times", 1) {
			return "not now"
		}
	}
	return ""
}

func (d *destination) Stop(context.Context, *pb.Destination_Stop_Request) (*pb.Destination_Stop_Response, error) {
	note(d.config, "stop")
	return &pb.Destination_Stop_Response{}, nil
}

func (d *destination) Teardown(context.Context, *pb.Destination_Teardown_Request) (*pb.Destination_Teardown_Response, error) {
	note(d.config, "teardown")
	return &pb.Destination_Teardown_Response{}, nil
}

func text(description string) *pb.Parameter {
	return &pb.Parameter{Description: description, Type: pb.Parameter_TYPE_STRING}
}

func whole(description, otherwise string, rules ...*pb.Validation) *pb.Parameter {
	return &pb.Parameter{Description: description, Default: otherwise, Type: pb.Parameter_TYPE_INT, Validations: rules}
}

func main() {
	host.Serve(&pb.Specification{
		Name: "counter", Summary: "Counts.", Version: "v0.2.0", Author: "tests",
		SourceParams: map[string]*pb.Parameter{
			"count": whole("how far it counts", "10", &pb.Validation{Type: pb.Validation_TYPE_GREATER_THAN, Value: "-1"}),
			"batch": whole("records of a message", "1000"),
			"size":  whole("bytes of a record", "20"),
			"upto":  text("a file that holds how far it counts"),
			"notes": text("a file for what it is called for"),
			"mode": {Description: "how", Type: pb.Parameter_TYPE_STRING, Default: "up",
				Validations: []*pb.Validation{{Type: pb.Validation_TYPE_INCLUSION, Value: "up,down"}}},
			"columns.*.kind": text("the kind of a column"),
			"every":          {Description: "a pause", Type: pb.Parameter_TYPE_DURATION},
		},
		DestinationParams: map[string]*pb.Parameter{
			"path": {Description: "the file", Type: pb.Parameter_TYPE_STRING,
				Validations: []*pb.Validation{{Type: pb.Validation_TYPE_REQUIRED}}},
			"notes":  text("a file for what it is called for"),
			"refuse": text("refuses records that hold it"),
			"fail":   text("refuses records that hold it, for a while"),
			"times":  whole("how often", "1"),
			"wait":   text("a file that it waits for before its second message"),
			"name": {Description: "a name", Type: pb.Parameter_TYPE_STRING,
				Validations: []*pb.Validation{{Type: pb.Validation_TYPE_REGEX, Value: "^[a-z]+$"}}},
		},
	}, &source{}, &destination{})
}
