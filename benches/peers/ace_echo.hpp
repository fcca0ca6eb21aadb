// The echo server on any of ACE's reactors that may be run by many threads. Both of them suspend a handle
// before the upcall and resume it afterwards, so a handler is never run by two threads at once: it leaves
// `resume_handler()` as it comes, which says that the reactor does so.
#pragma once

#include <ace/Event_Handler.h>
#include <ace/Reactor.h>
#include <ace/Reactor_Impl.h>
#include <ace/SOCK_Acceptor.h>
#include <ace/SOCK_Stream.h>

#include "echo.hpp"

namespace echo {

// Counted by its references: the reactor holds one while it is registered and one during each upcall, and
// the descriptor is closed with the last. Closed earlier, its number could be given to a new connection
// before the reactor has forgotten the old one.
class Connection : public ACE_Event_Handler {
public:
    Connection(ACE_Reactor *reactor, ACE_HANDLE handle, Cost cost)
        : ACE_Event_Handler(reactor), stream_(handle), cost_(cost) {
        reference_counting_policy().value(Reference_Counting_Policy::ENABLED);
    }

    ACE_HANDLE get_handle() const override { return stream_.get_handle(); }

    int handle_input(ACE_HANDLE) override {
        const ssize_t read = stream_.recv(buffer_, sizeof buffer_);
        if (read == -1 && (errno == EWOULDBLOCK || errno == EINTR)) {
            return 0;
        }
        if (read <= 0) {
            return -1;
        }
        start_ = 0;
        end_ = static_cast<std::size_t>(read);
        cost_.pay(buffer_);
        return answer();
    }

    int handle_output(ACE_HANDLE) override { return answer(); }

protected:
    ~Connection() override { stream_.close(); }

private:
    // Writes what is left. Nothing is read before that is done, so a peer that does not read is not read
    // from either. The handle is suspended: a new mask holds when it is resumed.
    int answer() {
        while (start_ < end_) {
            const ssize_t written = stream_.send(buffer_ + start_, end_ - start_);
            if (written >= 0) {
                start_ += static_cast<std::size_t>(written);
            } else if (errno == EWOULDBLOCK) {
                return wait_for(WRITE_MASK);
            } else if (errno != EINTR) {
                return -1;
            }
        }
        return wait_for(READ_MASK);
    }

    int wait_for(ACE_Reactor_Mask mask) {
        if (mask == mask_) {
            return 0;
        }
        mask_ = mask;
        return reactor()->mask_ops(this, mask, ACE_Reactor::SET_MASK) == -1 ? -1 : 0;
    }

    ACE_SOCK_Stream stream_;
    Cost cost_;
    ACE_Reactor_Mask mask_ = READ_MASK;
    // Read and not yet written: from `start_` to `end_`.
    std::size_t start_ = 0;
    std::size_t end_ = 0;
    char buffer_[BUFFER];
};

class Acceptor : public ACE_Event_Handler {
public:
    Acceptor(ACE_Reactor *reactor, const Listener &listener, Cost cost)
        : ACE_Event_Handler(reactor), is_unix_(listener.is_unix()), cost_(cost) {
        acceptor_.set_handle(listener.handle());
    }

    // The listener closes it.
    ~Acceptor() override { acceptor_.set_handle(ACE_INVALID_HANDLE); }

    ACE_HANDLE get_handle() const override { return acceptor_.get_handle(); }

    int handle_input(ACE_HANDLE) override {
        ACE_SOCK_Stream stream;
        while (acceptor_.accept(stream) == 0) {
            stream.enable(ACE_NONBLOCK);
            if (!is_unix_) {
                int yes = 1;
                stream.set_option(IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
            }
            ACE_Event_Handler_var connection(
                new Connection(reactor(), stream.get_handle(), cost_));
            // One that does not fit is closed with its last reference.
            reactor()->register_handler(connection.handler(), READ_MASK);
        }
        pause_if_out_of_descriptors(errno);
        return 0;
    }

private:
    ACE_SOCK_Acceptor acceptor_;
    bool is_unix_;
    Cost cost_;
};

// Serves on the given reactor, which becomes its own, until the input ends.
inline void serve(ACE_Reactor_Impl *implementation, const Arguments &arguments,
                  const Listener &listener) {
    ACE_Reactor reactor(implementation, true);
    Acceptor acceptor(&reactor, listener, arguments.cost);
    if (reactor.register_handler(&acceptor, ACE_Event_Handler::ACCEPT_MASK) == -1) {
        throw std::runtime_error("the reactor does not take the listening socket");
    }
    listener.announce();
    const auto work = [&reactor] {
        // An event that another thread has taken care of may count as a failure: no reason to leave.
        while (!reactor.reactor_event_loop_done()) {
            reactor.handle_events();
        }
    };
    run_until_input_ends(arguments.threads, work, [&reactor] { reactor.end_reactor_event_loop(); });
    reactor.remove_handler(&acceptor, ACE_Event_Handler::ACCEPT_MASK | ACE_Event_Handler::DONT_CALL);
}

} // namespace echo
