// A connector whose records are Avro, by schemas that it registers with its host, as the SDK's middleware does.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strconv"

	"conduit.test/connectors/host"
	"conduit.test/connectors/pb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

const bookSchema = `{"type":"record","name":"book","fields":[{"name":"title","type":"string"},{"name":"pages","type":"long"}]}`
const keySchema = `{"type":"record","name":"key","fields":[{"name":"id","type":"long"}]}`

var titles = []string{"Ulysses", "Emma", "Dracula"}

type source struct {
	pb.UnimplementedSourcePluginServer
	schemas pb.SchemaServiceClient
	at      int
	stop    chan struct{}
}

func (s *source) Configure(context.Context, *pb.Source_Configure_Request) (*pb.Source_Configure_Response, error) {
	s.stop = make(chan struct{})
	return &pb.Source_Configure_Response{}, nil
}

func (s *source) Open(_ context.Context, r *pb.Source_Open_Request) (*pb.Source_Open_Response, error) {
	if len(r.Position) > 0 {
		s.at, _ = strconv.Atoi(string(r.Position))
	}
	connection, err := grpc.NewClient(os.Getenv("CONDUIT_CONNECTOR_UTILITIES_GRPC_TARGET"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	s.schemas = pb.NewSchemaServiceClient(connection)
	return &pb.Source_Open_Response{}, nil
}

func (s *source) schema(subject, text string) (*pb.Schema, error) {
	token := metadata.AppendToOutgoingContext(context.Background(),
		"conduit-connector-token", os.Getenv("CONDUIT_CONNECTOR_TOKEN"))
	created, err := s.schemas.CreateSchema(token, &pb.CreateSchemaRequest{
		Subject: subject, Type: pb.Schema_TYPE_AVRO, Bytes: []byte(text)})
	if err != nil {
		return nil, err
	}
	// A call without the token is none of ours.
	if _, err := s.schemas.GetSchema(context.Background(), &pb.GetSchemaRequest{Subject: subject, Version: 1}); err == nil {
		return nil, fmt.Errorf("the schema service answers anybody")
	}
	found, err := s.schemas.GetSchema(token, &pb.GetSchemaRequest{Subject: subject, Version: created.Schema.Version})
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(found.Schema.Bytes, []byte(text)) || found.Schema.Id != created.Schema.Id {
		return nil, fmt.Errorf("the schema service answers with another schema")
	}
	return found.Schema, nil
}

func (s *source) Run(stream pb.SourcePlugin_RunServer) error {
	key, err := s.schema("book-keys", keySchema)
	if err != nil {
		return err
	}
	book, err := s.schema("books", bookSchema)
	if err != nil {
		return err
	}
	for ; s.at < len(titles); s.at++ {
		id := binary.AppendVarint(nil, int64(s.at))
		payload := binary.AppendVarint(nil, int64(len(titles[s.at])))
		payload = binary.AppendVarint(append(payload, titles[s.at]...), int64(100*s.at))
		if err := stream.Send(&pb.Source_Run_Response{Records: []*pb.Record{{
			Position:  []byte(strconv.Itoa(s.at + 1)),
			Operation: pb.Operation_OPERATION_SNAPSHOT,
			Metadata: map[string]string{
				"opencdc.key.schema.subject": "book-keys", "opencdc.key.schema.version": strconv.Itoa(int(key.Version)),
				"opencdc.payload.schema.subject": "books", "opencdc.payload.schema.version": strconv.Itoa(int(book.Version)),
			},
			Key:     &pb.Data{Data: &pb.Data_RawData{RawData: id}},
			Payload: &pb.Change{After: &pb.Data{Data: &pb.Data_RawData{RawData: payload}}},
		}}}); err != nil {
			return err
		}
	}
	for {
		if _, err := stream.Recv(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func (s *source) Stop(context.Context, *pb.Source_Stop_Request) (*pb.Source_Stop_Response, error) {
	return &pb.Source_Stop_Response{LastPosition: []byte(strconv.Itoa(s.at))}, nil
}

func (s *source) Teardown(context.Context, *pb.Source_Teardown_Request) (*pb.Source_Teardown_Response, error) {
	return &pb.Source_Teardown_Response{}, nil
}

func main() {
	host.Serve(&pb.Specification{Name: "books", Summary: "A few books", Version: "v1.0.0",
		SourceParams: map[string]*pb.Parameter{"shelf": {Description: "which", Default: "all"}}},
		&source{}, pb.UnimplementedDestinationPluginServer{})
}
