"""Does LongCE learn retrieval faster than CE?"""
