// One client, and with it one connection to each broker, for a producer and a consumer.
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/IBM/sarama"
)

func init() {
	commands["echo"] = echo
	commands["stream"] = stream
}

// A producer of the topic and what a consumer reads of it.
func both(
	config *sarama.Config, opts options, topic string,
) (sarama.SyncProducer, <-chan *sarama.ConsumerMessage) {
	config.Producer.Return.Successes = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	client, err := sarama.NewClient(opts.brokers(), config)
	must(err)
	producer, err := sarama.NewSyncProducerFromClient(client)
	must(err)
	if name := opts.get("group", ""); name != "" {
		return producer, readInGroup(client, name, topic)
	}
	return producer, readPartition(client, topic)
}

func send(producer sarama.SyncProducer, topic, value string) {
	message := &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)}
	_, _, err := producer.SendMessage(message)
	must(err)
}

func receive(read <-chan *sarama.ConsumerMessage, limit <-chan time.Time, value string) {
	select {
	case one := <-read:
		if string(one.Value) != value {
			fail(fmt.Sprintf("read %q instead of %q", one.Value, value))
		}
	case <-limit:
		fail(fmt.Sprintf("timed out before record %s", value))
	}
}

// Writes a record and waits until it has read it, again and again.
func echo(config *sarama.Config, opts options) {
	topic, count := split(opts.spans[0])
	producer, read := both(config, opts, topic)
	limit := time.After(opts.timeout())
	for number := 0; number < count; number++ {
		value := fmt.Sprint(number)
		began := time.Now()
		send(producer, topic, value)
		receive(read, limit, value)
		fmt.Printf("%.6f\n", time.Since(began).Seconds())
	}
}

// Writes one record after the other, and reads them meanwhile.
func stream(config *sarama.Config, opts options) {
	topic, count := split(opts.spans[0])
	producer, read := both(config, opts, topic)
	limit, began := time.After(opts.timeout()), time.Now()
	go func() {
		for number := 0; number < count; number++ {
			send(producer, topic, fmt.Sprint(number))
		}
	}()
	for number := 0; number < count; number++ {
		receive(read, limit, fmt.Sprint(number))
	}
	fmt.Printf("%.6f\n", time.Since(began).Seconds())
}

func readPartition(client sarama.Client, topic string) <-chan *sarama.ConsumerMessage {
	consumer, err := sarama.NewConsumerFromClient(client)
	must(err)
	stream, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	must(err)
	return stream.Messages()
}

type forwarder struct {
	read   chan *sarama.ConsumerMessage
	joined chan struct{}
}

func (f *forwarder) Setup(sarama.ConsumerGroupSession) error {
	f.joined <- struct{}{}
	return nil
}

func (f *forwarder) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (f *forwarder) ConsumeClaim(
	session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim,
) error {
	for one := range claim.Messages() {
		session.MarkMessage(one, "")
		f.read <- one
	}
	return nil
}

func readInGroup(client sarama.Client, name, topic string) <-chan *sarama.ConsumerMessage {
	joined, err := sarama.NewConsumerGroupFromClient(name, client)
	must(err)
	forward := &forwarder{make(chan *sarama.ConsumerMessage), make(chan struct{}, 1)}
	go func() {
		for {
			must(joined.Consume(context.Background(), []string{topic}, forward))
		}
	}()
	<-forward.joined
	return forward.read
}
