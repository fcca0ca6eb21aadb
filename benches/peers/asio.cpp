// Echo on Asio: one io_context, run by all threads.
//
//     c++ -std=c++17 -O2 -DNDEBUG -DASIO_STANDALONE -pthread -o asio asio.cpp      (Debian: libasio-dev)
//     ./asio [--threads 4] [--work-us 0] [--block-us 0] [--unix PATH]
//
// Prints its address when it listens and ends with its standard input. A connection has one operation under
// way at a time, and the next begins in its handler: an implicit strand, never run by two threads at once.
#include <asio.hpp>

#include <memory>
#include <type_traits>
#include <utility>

#include "echo.hpp"

namespace {

// Named, not the type-erased one that sockets have otherwise: one indirection less.
using Executor = asio::io_context::executor_type;

template <class Protocol>
class Connection : public std::enable_shared_from_this<Connection<Protocol>> {
public:
    using Socket = asio::basic_stream_socket<Protocol, Executor>;

    Connection(Socket socket, echo::Cost cost) : socket_(std::move(socket)), cost_(cost) {}

    void read() {
        auto self = this->shared_from_this();
        socket_.async_read_some(asio::buffer(buffer_), [self](asio::error_code error, std::size_t read) {
            // The end of the stream is an error too. Without a further operation it is the last reference.
            if (!error) {
                self->cost_.pay(self->buffer_);
                self->answer(read);
            }
        });
    }

private:
    // Writes at once what fits, and the rest when it does. Nothing is read before that is done, so a peer
    // that does not read is not read from either.
    void answer(std::size_t end) {
        asio::error_code error;
        const std::size_t written = socket_.write_some(asio::buffer(buffer_, end), error);
        if (error && error != asio::error::would_block) {
            return;
        }
        auto self = this->shared_from_this();
        if (written == end) {
            // Deferred: the others that are ready come first, and with many connections the next request
            // is there by then. Reading on at once is slower by a seventh with empty handlers; writing with
            // async_write is a little faster with those and slower with 20 us handlers and at light load.
            asio::defer(socket_.get_executor(), [self] { self->read(); });
            return;
        }
        asio::async_write(socket_, asio::buffer(buffer_ + written, end - written),
                          [self](asio::error_code error, std::size_t) {
                              if (!error) {
                                  self->read();
                              }
                          });
    }

    Socket socket_;
    echo::Cost cost_;
    char buffer_[echo::BUFFER];
};

template <class Protocol>
class Acceptor {
public:
    Acceptor(asio::io_context &context, const Protocol &protocol, int handle, echo::Cost cost)
        : acceptor_(context, protocol, handle), cost_(cost) {}

    // The listener closes it.
    ~Acceptor() {
        asio::error_code ignored;
        acceptor_.release(ignored);
    }

    void accept() {
        using Socket = typename Connection<Protocol>::Socket;
        acceptor_.async_accept([this](asio::error_code error, Socket socket) {
            if (error) {
                echo::pause_if_out_of_descriptors(error.value());
            } else {
                asio::error_code ignored;
                socket.non_blocking(true, ignored);
                if constexpr (std::is_same_v<Protocol, asio::ip::tcp>) {
                    socket.set_option(asio::ip::tcp::no_delay(true), ignored);
                }
                std::make_shared<Connection<Protocol>>(std::move(socket), cost_)->read();
            }
            accept();
        });
    }

private:
    asio::basic_socket_acceptor<Protocol, Executor> acceptor_;
    echo::Cost cost_;
};

template <class Protocol>
void serve(const Protocol &protocol, const echo::Arguments &arguments,
           const echo::Listener &listener) {
    asio::io_context context(arguments.threads);
    Acceptor<Protocol> acceptor(context, protocol, listener.handle(), arguments.cost);
    acceptor.accept();
    listener.announce();
    echo::run_until_input_ends(
        arguments.threads, [&context] { context.run(); }, [&context] { context.stop(); });
}

} // namespace

int main(int count, char **words) {
    return echo::main(count, words, [](const auto &arguments, const auto &listener) {
        if (listener.is_unix()) {
            serve(asio::local::stream_protocol(), arguments, listener);
        } else {
            serve(asio::ip::tcp::v4(), arguments, listener);
        }
    });
}
