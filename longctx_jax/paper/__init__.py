"""The paper's definitions: arrays in, arrays out."""
