package sluice.logstore;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.RemoteFileChangedException;
import software.amazon.awssdk.awscore.exception.AwsServiceException;

/** Commits to S3 with If-None-Match, so that of several drivers that write one version only one can. */
public class S3ConditionalLogStore extends HadoopFileSystemLogStore {
  private static final String ONLY_IF_ABSENT = "fs.option.create.conditional.overwrite";

  public S3ConditionalLogStore(Configuration configuration) {
    super(configuration);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
      throws IOException {
    FileSystem files = path.getFileSystem(configuration);
    byte[] body = body(actions);
    FSDataOutputStreamBuilder<?, ?> builder = files.createFile(path).overwrite(overwrite).recursive();
    if (!overwrite) {
      builder.must(ONLY_IF_ABSENT, true);
    }
    try {
      put(builder, body);
    } catch (IOException refused) {
      if (overwrite || !isConflict(refused)) {
        throw refused;
      }
      byte[] there = read(files, path);
      if (there == null) {
        // Two wrote at once and the store let neither: nothing is committed.
        throw refused;
      }
      // A PUT whose answer was lost is sent again, and then finds itself. Delta gives each commit an id of its own.
      if (!Arrays.equals(there, body)) {
        throw new java.nio.file.FileAlreadyExistsException(path.toString());
      }
    }
  }

  /** An object is there as a whole or not at all. */
  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
    return false;
  }

  private static byte[] body(Iterator<String> actions) {
    StringBuilder lines = new StringBuilder();
    actions.forEachRemaining(action -> lines.append(action).append('\n'));
    return lines.toString().getBytes(StandardCharsets.UTF_8);
  }

  /** The request is sent when the stream is closed; one that broke before must not be. */
  private static void put(FSDataOutputStreamBuilder<?, ?> builder, byte[] body) throws IOException {
    FSDataOutputStream stream = builder.build();
    stream.write(body);
    stream.close();
  }

  private static boolean isConflict(Throwable error) {
    for (Throwable each = error; each != null; each = each.getCause()) {
      if (each instanceof FileAlreadyExistsException || each instanceof RemoteFileChangedException) {
        return true;
      }
      if (each instanceof AwsServiceException) {
        int status = ((AwsServiceException) each).statusCode();
        return status == 412 || status == 409;
      }
    }
    return false;
  }

  private static byte[] read(FileSystem files, Path path) throws IOException {
    try (InputStream stream = files.open(path)) {
      return stream.readAllBytes();
    } catch (FileNotFoundException absent) {
      return null;
    }
  }
}
