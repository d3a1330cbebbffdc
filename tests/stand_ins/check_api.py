from tests.stand_ins.answering import node

if __name__ == "__main__":
    node()
