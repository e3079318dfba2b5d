DROP TABLE write_proof;
