// A member of a group, as Sarama has it since 1.19.
package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

type member struct {
	lock    sync.Mutex
	missing int
}

func (m *member) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// One claim that ends ends the session, which commits what was marked.
func (m *member) ConsumeClaim(
	session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim,
) error {
	for one := range claim.Messages() {
		if !m.take(session, one) {
			return nil
		}
	}
	return nil
}

func (m *member) take(session sarama.ConsumerGroupSession, one *sarama.ConsumerMessage) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.missing == 0 {
		return false
	}
	m.missing--
	show(one)
	session.MarkOffset(one.Topic, one.Partition, one.Offset+1, "")
	return m.missing > 0
}

func group(config *sarama.Config, opts options, topic string, count int) {
	if session := opts.get("session", ""); session != "" {
		config.Consumer.Group.Session.Timeout = time.Duration(integer(session)) * time.Millisecond
		config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	}
	joined, err := sarama.NewConsumerGroup(opts.brokers(), opts.get("group", ""), config)
	must(err)
	within, cancel := context.WithTimeout(context.Background(), opts.timeout())
	defer cancel()
	reader := &member{missing: count}
	retries := integer(opts.get("retries", "0"))
	for reader.missing > 0 {
		err := joined.Consume(within, []string{topic}, reader)
		if within.Err() != nil {
			fail(fmt.Sprintf("timed out, %d records still missing", reader.missing))
		}
		if retries == 0 {
			must(err)
		} else if err != nil {
			// It is for the application to join again.
			retries--
			time.Sleep(100 * time.Millisecond)
		}
	}
	// Leaves the group.
	must(joined.Close())
}
